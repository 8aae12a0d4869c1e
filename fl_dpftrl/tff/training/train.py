"""Training of any TFF learning process, with checkpoints, log, observers and reports."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tff_inprocess
from fl_dpftrl.claims import noise_to_signal
from fl_dpftrl.logs import id_columns, id_spellings, unit_tables
from fl_dpftrl.mechanisms import base, schemas
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import per_units
from fl_dpftrl.planning.simulation import scenarios
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import release, shared_budgets
from fl_dpftrl.run.observers import measuring, observer, progress
from fl_dpftrl.support import checks, metrics
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages
from fl_dpftrl.tff.aggregators import canary_sums, factories, process_check, update_types
from fl_dpftrl.tff.training import device_populations, loop, processes, report, trained_models
from tff_inprocess import contexts

_RELEASED = 'aggregator.metrics.'  # How a process's check names what measuring.RELEASED does.
_SHOWN = 'show_client_errors prints values of clients, for debugging'
_LOWEST_BITS = (
  "the guarantee does not cover the lowest bits of releases, as the noise is in TFF's state: give"
  " memory='engine', or call tff_inprocess.use() before the process is built"
)


@durable.letting_go
def train(
  process: Any,
  aggregator: factories.CorrelatedNoiseFactory,
  *,
  folder: str | os.PathLike[str],
  num_rounds: int,
  clients: Sequence[str],
  client_data: Callable[[int, str], Any],
  timer_rounds: int = 1,
  participation: Participation | None = None,
  units: unit_tables.Given | None = None,
  population: shared_budgets.Population | None = None,
  delta: float = 1e-6,
  seed: int = 0,
  rounds: Callable[[], Iterator[schemas.Cohort]] | None = None,
  scenario: scenarios.Scenario | None = None,
  max_epsilon: float | None = None,
  stop_when: Callable[[metrics.History], bool] | None = None,
  evaluate: Callable[[Any], Mapping[str, Any]] | None = None,
  rounds_per_evaluation: int = 10,
  observers: Sequence[observer.Observer] = (),
  setting: settings.Setting = settings.Setting(),
  context: tff_inprocess.InProcessContext | None = None,
  trusted_operations: Sequence[str] = (),
  allow_unprotected_state: bool = False,
  say: Callable[[str], None] | None = None,
) -> trained_models.Trained:
  """Trains in a folder, or goes on where a run in it was interrupted.

  Every noise row enters one sum, whatever happens. The folder gets strategy.json,
  claim.json, participation.parquet, metrics.csv, privacy.json, privacy.html, model.npz (the
  weights, without any secret) and checkpoints/, which hold the noise.

  Args:
    process: TFF learning process, as of `build_unweighted_fed_avg`, with the
      aggregator as its model_aggregator.
    aggregator: bounds updates and adds the noise; its report_goal clients form a cohort.
    folder: output folder, of one run.
    num_rounds: number of rounds, of which each uses a noise row.
    clients: names of the clients.
    client_data: (round, client) → the data that process.next takes of a client;
      the same in every call.
    timer_rounds: min-sep that the clients' timers enforce.
    participation: that of a run without an end, a `LossBudget` or `MinSep(None, …)`, in place of
      `timer_rounds`. num_rounds is then only where this call stops: a later one with more goes on,
      at the same ε. Or a `PerUnit` of one, with `units`.
    population: `Population` on whose budgets this run and all others draw together; clients that
      have none left are not trained on.
    units: table of who owns which client, or its files: clients whose owners may not take part now
      are turned away, so that a cohort may be smaller than the report goal.
    delta: δ at which ε is stated.
    seed: seed of the cohorts and of random draws of the clients; not of the noise.
    rounds: gives the cohorts of rounds 0, 1, … in place of a simulation of
      clients that are always available.
    scenario: population to simulate in place of `timer_rounds`, for timers in hours, dropouts,
      over-selection and availability; its device i is client i.
    max_epsilon: privacy budget of this folder: the run ends before the round that would pass this ε
      by the schema that the timers enforce, and turns away clients that do not keep to it. Another
      folder with the same clients spends more.
    stop_when: released metrics by round → whether the run ends before its next round. It needs
      `metrics` of the aggregator, and sees them only: the guarantee of all declared rounds then
      covers the end too.
    evaluate: weights → metrics, for metrics.csv: a mapping from names to numbers, or to mappings.
    rounds_per_evaluation: number of rounds between two evaluations.
    observers: see the run's rounds, such as those of `dpftrl.observers`. An error of one ends the
      run; see `Observer`.
    setting: data, unit of privacy and name of the strategy, for the report.
    context: runs the rounds, such as what `tff_inprocess.use_machines` returns, with the seed of
      the clients' draws; None for this process.
    trusted_operations: as of `check_process`; the log and its statement then name those that the
      process has.
    allow_unprotected_state: trains a process that `check_process` does not pass, too. The log then
      says why its guarantee is void.
    say: takes progress, in lines; None for `print` where observers have a `ProgressLine`.

  Raises:
    ValueError: for an argument out of range, a folder with another run, or a process that learns
      from clients in other ways than by its aggregator.
    RoundFailedError: if a round could not be computed; the same call goes on.
    LostStateError: if files that are needed to go on are gone.

  Source: Choquette-Choo et al. 2023 and McMahan et al. 2024 for the mechanisms;
  docs/decisions/round-protocol.md for what happens to a noise row.
  """
  folder = paths.local(folder)
  if not isinstance(aggregator, factories.CorrelatedNoiseFactory):
    raise ValueError(f'aggregator must be a CorrelatedNoiseFactory, got {type(aggregator)}')
  num_rounds = checks.whole(num_rounds=num_rounds)
  _check_strategy(folder / files.NAME, aggregator.strategy)
  column = id_columns.column(clients, 'clients')
  id_spellings.check(column, 'clients')
  checks.instance(Sequence, observers=observers)
  names = id_columns.as_numpy(column)
  if len(set(names.tolist())) < len(names):
    raise ValueError('clients must have distinct names')
  per_unit: Any = participation if isinstance(participation, per_units.PerUnit) else None
  devices = device_populations.devices(
    aggregator,
    len(clients),
    num_rounds=num_rounds,
    timer_rounds=checks.whole(timer_rounds=timer_rounds),
    seed=seed,
    scenario=scenario,
    participation=per_unit.participation if per_unit else participation,
  )
  declared: Any = devices.declared_schema(num_rounds)
  if rounds is None:
    simulated = devices.simulation()
    named = lambda cohort: cohort._replace(device_ids=names[cohort.device_ids])
    rounds = lambda: map(named, simulated.rounds())
  if (units is None) != (per_unit is None):
    raise ValueError('units, a table, and a PerUnit participation need each other')
  if per_unit is not None:
    declared = dataclasses.replace(per_unit, participation=declared)
  if stop_when is not None and (aggregator.private_metrics is None or declared is None):
    raise ValueError(
      'stop_when needs metrics of the aggregator, and timers in rounds or a loss budget: no'
      ' guarantee covers an end that other figures of clients decide, or without declared rounds'
    )
  trainable = update_types.updates_of(process)
  learned = process_check.check_process(process, aggregator, trusted_operations=trusted_operations)
  if not allow_unprotected_state:
    learned.require()
  if stop_when is not None and (exact := [n for n in learned.metrics if n.startswith(_RELEASED)]):
    raise ValueError(
      f'stop_when would see {exact[0]}, which depends on clients and has no noise: rename it'
    )
  if aggregator.canaries is not None:
    canary_sums.check(process, learned.metrics)
  shown = context is not None and context.show_client_errors
  claim = aggregator.claim(
    trainable,
    participation=declared,
    void_reason='; '.join(filter(None, (learned.reason, _SHOWN if shown else None))) or None,
    not_private_metrics=_shortened(learned.metrics),
    trusted_operations=_shortened(learned.trusted),
  )
  table = report.Table(folder / metrics.NAME)
  num_coordinates = aggregator.num_coordinates(trainable)
  num_extra = release.num_extra(aggregator.clip_norm, aggregator.private_metrics)
  has_lines = any(isinstance(watching, progress.ProgressLine) for watching in observers)
  say = say or (print if has_lines else lambda line: None)
  evaluating = [measuring.Evaluation(evaluate, rounds_per_evaluation)] if evaluate else []
  lines = [] if has_lines else [progress.ProgressLine()]
  # Those that write the files of the run come first.
  watching = observer.Observers([*evaluating, table, *observers, *lines], folder)
  running = tff_inprocess.within(seed=seed) if context is None else contexts.installed(context)
  with running as used:
    setting = dataclasses.replace(
      setting, population=devices.population, zeroing_norm=aggregator.zeroing_norm
    )
    with loop.TrainingRun(
      folder,
      claim,
      max_rounds=num_rounds,
      process=processes.RoundProcess(process, aggregator, used),
      observers=watching,
      say=say,
      machines=used.status,
      published=table.num_rounds,
      setting=setting,
      delta=delta,
      max_epsilon=max_epsilon,
      units=units,
      population=population,
      exact_metrics=learned.metrics,
      num_coordinates=num_coordinates - num_extra,
    ) as run:
      if claim.arithmetic.kind == arithmetics.LATTICE:
        say(_LOWEST_BITS)
      ratio = noise_to_signal.expected(run.claim, num_coordinates)
      if ratio is not None and (hopeless := ratio.warning(max_epsilon)) is not None:
        say(hopeless)
      if (fixed := processes.warning_of_fixed_weights(process)) is not None:
        say(fixed)
      table.restore(run)
      should_stop = lambda: stop_when is not None and stop_when(table.released_metrics())
      run.train(rounds(), _made_later(client_data, clients), should_stop)
    weights = run.weights()
  run.trained = report.write(run, weights, table.history())
  watching.end(run)
  return run.trained


def _shortened(names: Sequence[str]) -> tuple[str, ...]:
  """Returns names as a claim takes them."""
  return tuple(name[:200] for name in names[:1000])


def _made_later(
  client_data: Callable[[int, str], Any], clients: Sequence[str]
) -> Callable[[int, Any], list[tff_inprocess.Later]]:
  """Returns the function of a round and its ids to clients' data, made where clients train."""
  by_name = {str(client): client for client in clients}
  later = lambda t, name: tff_inprocess.Later(client_data, (t, by_name.get(name, name)))
  return lambda t, device_ids: [later(t, str(device_id)) for device_id in device_ids]


def _check_strategy(path: pathlib.Path, strategy: base.Strategy) -> None:
  """Raises ValueError if a run in the folder has another strategy."""
  digest = documents.strategy_digest
  if path.exists() and digest(files.load_strategy(path)) != digest(strategy):
    raise ValueError(
      f'{messages.quoted(str(path))} is another strategy; name another folder, or go on with it'
    )
