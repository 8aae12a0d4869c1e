"""Training of any TFF learning process, with checkpoints, log and reports."""

import dataclasses
import functools
import io
import json
import os
import pathlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_dpftrl import catalogue, digests, files, messages, participation, runtime
from fl_dpftrl.aggregators import factory, process_check
from fl_dpftrl.learning import checkpoints, loop, metrics, numbered
from fl_dpftrl.learning import process as process_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import metric_names, noise_record, shards
from fl_dpftrl.replaying import replay as replay_lib
from fl_dpftrl.replaying import runs, statement
from fl_dpftrl.reports import privacy
from fl_dpftrl.runtime import context as contexts
from fl_dpftrl.simulation import cohorts, scenario

STRATEGY_NAME = 'strategy.json'
METRICS_NAME = 'metrics.csv'
MODEL_NAME = 'model.npz'

NO_NOISE = 'noise is off (noise_multiplier 0)'
NOISE_SEED = 'the noise seed was given, so whoever knows it can remove the noise'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
  """A trained model and the guarantee that its log proves.

  Attributes:
    weights: what `process.get_model_weights` gives for the last state.
    statement: replay of the participation log.
    folder: output folder.
  """

  weights: Any
  statement: statement.Statement
  folder: pathlib.Path


def train(
  process: Any,
  aggregator: factory.CorrelatedNoiseFactory,
  *,
  folder: str | os.PathLike[str],
  num_rounds: int,
  clients: Sequence[str],
  client_data: Callable[[int, str], Any],
  timer_rounds: int = 1,
  delta: float = 1e-6,
  seed: int = 0,
  rounds: Callable[[], Iterator[participation.Cohort]] | None = None,
  evaluate: Callable[[Any], Mapping[str, float]] | None = None,
  rounds_per_evaluation: int = 10,
  context: runtime.InProcessContext | None = None,
  allow_unprotected_state: bool = False,
  say: Callable[[str], None] = lambda line: None,
) -> Trained:
  """Trains in a folder, or goes on where a run in it was interrupted.

  Every noise row enters one sum, whatever happens. The folder gets strategy.json,
  participation.parquet, metrics.csv, privacy.json, privacy.html, model.npz (the
  weights, without any secret) and checkpoints/, which hold the noise.

  Args:
    process: TFF learning process, as of `build_unweighted_fed_avg`, with the
      aggregator as its model_aggregator.
    aggregator: bounds updates and adds the noise; its report_goal clients form
      a cohort.
    folder: output folder, of one run.
    num_rounds: number of rounds, of which each uses a noise row.
    clients: names of the clients.
    client_data: (round, client) → the data that process.next takes of a client;
      the same in every call.
    timer_rounds: min-sep that the clients' timers enforce.
    delta: δ at which ε is stated.
    seed: seed of the cohorts and of random draws of the clients; not of the
      noise.
    rounds: gives the cohorts of rounds 0, 1, … in place of a simulation of
      clients that are always available.
    evaluate: weights → metrics, for metrics.csv: a mapping from names to numbers, or to
      mappings.
    rounds_per_evaluation: number of rounds between two evaluations.
    context: runs the rounds, such as what `runtime.use_machines` returns, with the seed of the
      clients' draws; None for this process.
    allow_unprotected_state: trains a process that `check_process` does not pass, too. The log then
      says why its guarantee is void.
    say: takes progress, in lines.

  Raises:
    ValueError: for an argument out of range, a folder with another run, or a process that learns
      from clients in other ways than by its aggregator.
    RoundFailedError: if a round could not be computed; the same call goes on.
    LostStateError: if files that are needed to go on are gone.

  Source: Choquette-Choo et al. 2023 and McMahan et al. 2024 for the mechanisms;
  docs/decisions/round-protocol.md for what happens to a noise row.
  """
  _check(aggregator, num_rounds, clients, timer_rounds, rounds_per_evaluation)
  folder = pathlib.Path(folder)
  _check_strategy(folder / STRATEGY_NAME, aggregator)
  trainable = _trainable(process)
  learned = process_check.check_process(process, aggregator)
  if not allow_unprotected_state:
    learned.require()
  folder.mkdir(parents=True, exist_ok=True)
  num_rounds, timer_rounds = int(num_rounds), int(timer_rounds)
  schema = participation.MinSep(num_rounds=num_rounds, min_sep=min(timer_rounds, num_rounds))
  if not (folder / STRATEGY_NAME).exists():
    catalogue.save_strategy(folder / STRATEGY_NAME, aggregator.strategy, schema=schema)
  names = np.array(list(clients))
  if rounds is None:
    simulated = _simulation(aggregator.report_goal, len(names), timer_rounds, seed)
    rounds = lambda: cohorts.named(simulated.rounds(), names)
  void = '; '.join(filter(None, (_void_reason(aggregator), learned.reason))) or None
  table = metrics.MetricsTable(folder / METRICS_NAME)

  def publish(checkpoint: checkpoints.Checkpoint) -> None:
    done = checkpoint.num_rounds
    if not checkpoint.measurements:
      return
    row: dict[str, float | int | str] = dict(checkpoint.measurements)
    if evaluate is not None and (done % rounds_per_evaluation == 0 or done == num_rounds):
      row |= _evaluation(evaluate(_weights(process, checkpoint)))
    table.put(done - 1, row)
    machines = '' if context is None else context.status()
    say(' | '.join(filter(None, [f'round {done}/{num_rounds}', machines])))

  fixed = process_lib.warning_of_fixed_weights(process)
  if fixed is not None:
    say(fixed)
  skip_row = functools.cache(lambda: aggregator.skip_row(trainable))  # Most runs burn none.
  running = runtime.in_process(seed=seed) if context is None else contexts.installed(context)
  with running as used:
    last = loop.run(
      loop.Federation(
        process=_Bound(process, used, aggregator),
        skip_row=lambda state: skip_row()(state),
        rounds=rounds,
        client_data=lambda t, ids: [runtime.Later(client_data, (t, str(i))) for i in ids],
      ),
      folder,
      num_rounds=num_rounds,
      publish=publish,
      begin=lambda latest, earlier: table.keep_only(
        set(range(latest.num_rounds)) - set(latest.burnt)
      ),
      published=max(table.rounds, default=-1) + 1,
      log_metadata=_log_metadata(aggregator, void) | metric_names.metadata(learned.metrics),
      warn=say,
    )
    weights = _weights(process, last)
  stated = _report(folder, aggregator, schema, delta, void, burnt=last.burnt, clients=len(names))
  _write_model(folder / MODEL_NAME, weights)
  return Trained(weights=weights, statement=stated, folder=folder)


class _Bound(numbered.NumberedProcess):
  """A learning process whose noise is proven to be that of an aggregator.

  The guarantee is computed from the aggregator, so a process that was built with
  another one must not be trained.
  """

  def __init__(self, process: Any, context: Any, aggregator: factory.CorrelatedNoiseFactory):
    super().__init__(process, context)
    weights = process.get_model_weights.type_signature.result
    self._expected = aggregator.parameters(weights.trainable)

  def initialize(self) -> Any:
    """Returns the first state.

    Raises:
      ValueError: if its noise has other parameters than the aggregator.
    """
    state = super().initialize()
    noise = getattr(getattr(state, 'aggregator', None), 'noise', None)
    found = getattr(noise, 'parameters', None)
    if found is None or any(
      np.asarray(own).item() != expected for own, expected in zip(found, self._expected)
    ):
      raise ValueError(
        'process must be built with the aggregator as its model_aggregator: its noise has'
        ' another strategy, seed, noise_multiplier or clip_norm'
      )
    return state


def _trainable(process: Any) -> Any:
  """Returns the type of the model's trainable weights.

  Raises:
    ValueError: for a process without a model, such as k-means.
  """
  weights = getattr(process, 'get_model_weights', None)
  model = getattr(getattr(weights, 'type_signature', None), 'result', None)
  trainable = getattr(model, 'trainable', None)
  if trainable is None:
    raise ValueError(
      'process must be a learning process whose get_model_weights gives trainable weights, as'
      f" federated averaging has, got {type(process).__name__}: run others' rounds with a Guard"
    )
  return trainable


def _check(
  aggregator: Any, num_rounds: int, clients: Sequence[str], timer_rounds: int, every: int
) -> None:
  if not isinstance(aggregator, factory.CorrelatedNoiseFactory):
    raise ValueError(f'aggregator must be a CorrelatedNoiseFactory, got {type(aggregator)}')
  for name, value in (
    ('num_rounds', num_rounds),
    ('timer_rounds', timer_rounds),
    ('rounds_per_evaluation', every),
  ):
    participation.positive_integer(name, value)
  if len(set(clients)) < len(clients):
    raise ValueError('clients must have distinct names')
  needed = min(timer_rounds, num_rounds) * aggregator.report_goal
  if needed > len(clients):
    raise ValueError(
      f'timer_rounds={timer_rounds} with report_goal={aggregator.report_goal} needs {needed}'
      f' clients, got {len(clients)}'
    )


def _simulation(
  report_goal: int, num_clients: int, timer_rounds: int, seed: int
) -> cohorts.Simulation:
  return scenario.Scenario(
    population=num_clients,
    report_goal=report_goal,
    timer_rounds=timer_rounds,
    seed=seed,
    availability='always',
    clients_per_round=report_goal,
    dropout=0.0,
  ).simulation()


def _check_strategy(path: pathlib.Path, aggregator: factory.CorrelatedNoiseFactory) -> None:
  """Raises ValueError if a run in the folder has another strategy."""
  if path.exists() and digests.strategy_digest(
    catalogue.load_strategy(path)
  ) != digests.strategy_digest(aggregator.strategy):
    raise ValueError(
      f'{messages.quoted(str(path))} is another strategy; name another folder, or go on with it'
    )


def _evaluation(found: Any) -> dict[str, float]:
  """Returns the columns of what `evaluate` returned."""
  if not isinstance(found, Mapping):
    raise ValueError(
      "evaluate must return a mapping from names to numbers, such as {'accuracy': 0.5}, got"
      f' {type(found).__name__}'
    )
  return metrics.flatten(found, 'validation/')


def _weights(process: Any, checkpoint: checkpoints.Checkpoint) -> Any:
  return process.get_model_weights(checkpoint.state)


def _void_reason(aggregator: factory.CorrelatedNoiseFactory) -> str | None:
  if not aggregator.noise_multiplier:
    return NO_NOISE
  return None if aggregator.noise_seed is None else NOISE_SEED


def _log_metadata(aggregator: factory.CorrelatedNoiseFactory, void: str | None) -> dict[str, str]:
  metadata = noise_record.run_metadata(
    aggregator.strategy, aggregator.noise_multiplier, clip_norm=aggregator.clip_norm
  )
  return metadata if void is None else {**metadata, shards.VOID_KEY: void}


def _report(
  folder: pathlib.Path,
  aggregator: factory.CorrelatedNoiseFactory,
  schema: participation.MinSep,
  delta: float,
  void: str | None,
  *,
  burnt: tuple[int, ...],
  clients: int,
) -> statement.Statement:
  """Replays the log, and writes the statement and its report."""
  run = runs.Run.of(
    log_lib.read_log(folder / loop.LOG_NAME),
    aggregator.strategy,
    noise_multiplier=aggregator.noise_multiplier,
    declared_schema=schema,
  )
  stated = replay_lib.replay(run, deltas=delta, report_goal=aggregator.report_goal)
  text = json.dumps(stated.to_json(), indent=2, allow_nan=False, default=str) + '\n'
  files.write_durably(folder / 'privacy.json', text.encode(), private=True)
  command = [
    *('fl-dpftrl', 'replay'),
    f'--log={folder / loop.LOG_NAME}',
    f'--strategy={folder / STRATEGY_NAME}',
    f'--noise_multiplier={aggregator.noise_multiplier}',
    f'--delta={delta}',
    f'--declared_min_sep={schema.min_sep}',
    f'--report_goal={aggregator.report_goal}',
  ]
  privacy.write_report(
    folder / 'privacy.html',
    stated,
    setting=privacy.Setting(
      run=folder.name,
      noise_multiplier=aggregator.noise_multiplier,
      command=shlex.join(command),
      family=aggregator.strategy.family,
      clip_norm=aggregator.first_clip_norm,
      zeroing_norm=aggregator.zeroing_norm,
      report_goal=aggregator.report_goal,
      population=clients,
      void_reason=void,
      burnt_rounds=burnt,
    ),
  )
  return stated


def _write_model(path: pathlib.Path, weights: Any) -> None:
  arrays = {f'weight{i}': np.asarray(w) for i, w in enumerate(weights.trainable)}
  arrays |= {f'state{i}': np.asarray(w) for i, w in enumerate(weights.non_trainable)}
  content = io.BytesIO()
  np.savez(content, **arrays)
  files.write_durably(path, content.getvalue())
