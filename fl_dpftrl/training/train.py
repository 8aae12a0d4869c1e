"""Training of any TFF learning process, with checkpoints, log, observers and reports."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tff_inprocess
from fl_dpftrl import checks, metrics
from fl_dpftrl.accounting import arithmetics
from fl_dpftrl.aggregators import factories, process_check
from fl_dpftrl.families import base
from fl_dpftrl.files import paths
from fl_dpftrl.logs import id_columns, unit_tables
from fl_dpftrl.observers import measuring, observer, progress
from fl_dpftrl.participation import registry, schemas
from fl_dpftrl.participations import loss_budgets, per_units
from fl_dpftrl.reports import settings
from fl_dpftrl.rounds import budget
from fl_dpftrl.simulation import cohorts, scenarios
from fl_dpftrl.strategies import documents, files
from fl_dpftrl.text import messages
from fl_dpftrl.training import loop, processes, report, tables, trained_models
from tff_inprocess import contexts

_RELEASED = 'aggregator.metrics.'  # How a process's check names what measuring.RELEASED does.
_SHOWN = 'show_client_errors prints values of clients, for debugging'


def train(
  process: Any,
  aggregator: factories.CorrelatedNoiseFactory,
  *,
  folder: str | os.PathLike[str],
  num_rounds: int,
  clients: Sequence[str],
  client_data: Callable[[int, str], Any],
  timer_rounds: int = 1,
  participation: registry.Participation | None = None,
  units: unit_tables.Given | None = None,
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
  say: Callable[[str], None] = lambda line: None,
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
    observers: see the run's rounds, such as those of `fl_dpftrl.observers`. An error of one ends
      the run; see `Observer`.
    setting: data, unit of privacy and name of the strategy, for the report.
    context: runs the rounds, such as what `tff_inprocess.use_machines` returns, with the seed of
      the clients' draws; None for this process.
    trusted_operations: as of `check_process`; the log and its statement then name those that the
      process has.
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
  folder = paths.local(folder)
  if not isinstance(aggregator, factories.CorrelatedNoiseFactory):
    raise ValueError(f'aggregator must be a CorrelatedNoiseFactory, got {type(aggregator)}')
  num_rounds = checks.whole(num_rounds=num_rounds)
  timer_rounds = checks.whole(timer_rounds=timer_rounds)
  names = id_columns.as_numpy(id_columns.column(clients, 'clients'))
  if len(set(names.tolist())) < len(names):
    raise ValueError('clients must have distinct names')
  per_unit = participation if isinstance(participation, per_units.PerUnit) else None
  inner = per_unit.participation if per_unit else participation
  devices = _devices(scenario, aggregator, num_rounds, clients, timer_rounds, seed, inner)
  declared: Any = devices.declared_schema(num_rounds)
  if (units is None) != (per_unit is None):
    raise ValueError('units, a table, and a PerUnit participation need each other')
  if per_unit:
    declared = dataclasses.replace(per_unit, participation=declared)
  _check_strategy(folder / files.NAME, aggregator.strategy)
  if stop_when is not None and (aggregator.private_metrics is None or declared is None):
    raise ValueError(
      'stop_when needs metrics of the aggregator, and timers in rounds or a loss budget: no'
      ' guarantee covers an end that other figures of clients decide, or without declared rounds'
    )
  trainable = processes.trainable_weights(process)
  learned = process_check.check_process(process, aggregator, trusted_operations=trusted_operations)
  if not allow_unprotected_state:
    learned.require()
  if stop_when is not None and (exact := [n for n in learned.metrics if n.startswith(_RELEASED)]):
    raise ValueError(
      f'stop_when would see {exact[0]}, which depends on clients and has no noise: rename it'
    )
  if rounds is None:
    simulated = devices.simulation()
    rounds = lambda: cohorts.named(simulated.rounds(), names)
  shows_errors = context is not None and context.show_client_errors
  claim = aggregator.claim(
    trainable,
    participation=declared,
    void_reason='; '.join(filter(None, (learned.reason, _SHOWN if shows_errors else None))) or None,
    not_private_metrics=_shortened(learned.metrics),
    trusted_operations=_shortened(learned.trusted),
  )
  claim = budget.limited(claim, delta=delta, max_epsilon=max_epsilon)
  if (allowed := claim.answers.num_rows) < num_rounds:
    why = 'last_row' if claim.answers.num_rounds is None else f'max_epsilon={max_epsilon:g}'
    say(f'{why} allows {allowed} of {num_rounds} rounds: the run ends there')
    num_rounds = allowed
  of_name = {str(client): client for client in clients}
  get_data = lambda t, ids: [
    tff_inprocess.Later(client_data, (t, of_name.get(str(i), str(i)))) for i in ids
  ]
  table = tables.Table(metrics.MetricsTable(folder / metrics.NAME))
  watching = _observers(table, evaluate, rounds_per_evaluation, observers)
  running = tff_inprocess.within(seed=seed) if context is None else contexts.installed(context)
  with running as used:
    run = loop.TrainingRun(
      folder=folder,
      max_rounds=num_rounds,
      process=processes.RoundProcess(process, aggregator, used),
      rounds=rounds,
      client_data=get_data,
      aggregator=aggregator,
      claim=claim,
      delta=delta,
      max_epsilon=max_epsilon,
      units=units,
      exact_metrics=learned.metrics,
      say=say,
      should_stop=lambda: stop_when is not None and stop_when(table.released_metrics()),
      machines=used.status,
    )
    if claim.arithmetic.kind == arithmetics.LATTICE:
      say(
        "the guarantee does not cover the lowest bits of releases, as the noise is in TFF's state: "
        "give memory='engine', or call tff_inprocess.use() before the process is built"
      )
    fixed = processes.warning_of_fixed_weights(process)
    if fixed is not None:
      say(fixed)
    watching.begin(run)
    folder.mkdir(parents=True, exist_ok=True)
    last = loop.run(run, watching, published=table.num_rounds, recovered=table.restore)
    weights = run.process.weights(last.state)
  run.trained = report.write(
    run,
    weights,
    population=devices.population,
    burnt=last.burnt,
    history=table.history(),
    setting=setting,
  )
  watching.end(run)
  return run.trained


def _observers(
  table: tables.Table,
  evaluate: Callable[[Any], Mapping[str, Any]] | None,
  rounds_per_evaluation: int,
  observers: Sequence[observer.Observer],
) -> observer.Observers:
  """Returns all observers of a run: those that write its files come first."""
  evaluating = [measuring.Evaluation(evaluate, rounds_per_evaluation)] if evaluate else []
  lines = [progress.ProgressLine()]
  if any(isinstance(watching, progress.ProgressLine) for watching in observers):
    lines = []
  return observer.Observers([*evaluating, table, *observers, *lines])


def _shortened(names: Sequence[str]) -> tuple[str, ...]:
  """Returns names as a claim takes them."""
  return tuple(name[:200] for name in names[:1000])


def _devices(
  given: scenarios.Scenario | None,
  aggregator: factories.CorrelatedNoiseFactory,
  num_rounds: int,
  clients: Sequence[str],
  timer_rounds: int,
  seed: int,
  participation: registry.Participation | None,
) -> scenarios.Scenario:
  """Returns the population of a run: the given one, or clients that are always available."""
  goal = aggregator.report_goal
  if participation is not None and getattr(participation, 'num_rounds', 0) is not None:
    raise ValueError(
      f'participation must be without an end, got {messages.quoted(participation)}; a schema of'
      ' num_rounds is that of timer_rounds or of a scenario'
    )
  if participation is not None and (given is not None or timer_rounds != 1):
    raise ValueError('participation excludes timer_rounds and scenario: it is a meter of its own')
  always: Any = {
    'population': len(clients),
    'report_goal': goal,
    'seed': seed,
    'availability': 'always',
    'clients_per_round': goal,
    'dropout': 0.0,
  }
  if given is not None:
    if timer_rounds != 1:
      raise ValueError('timer_rounds and scenario exclude each other: the scenario has a timer')
    if given.report_goal != goal:
      raise ValueError(
        f'scenario has report_goal={given.report_goal}, and the aggregator has {goal}'
      )
    if given.population > len(clients):
      raise ValueError(
        f'scenario has population={given.population}, and there are {len(clients)} clients'
      )
    return given
  if isinstance(participation, loss_budgets.LossBudget):
    return scenarios.Scenario(loss_budget=participation, strategy=aggregator.strategy, **always)
  if isinstance(participation, schemas.MinSep):
    b, k = participation.min_sep, participation.max_participations
    return scenarios.Scenario(timer_rounds=b, max_participations=k, **always)
  needed = min(timer_rounds, num_rounds) * goal
  if needed > len(clients):
    raise ValueError(
      f'timer_rounds={timer_rounds} with report_goal={goal} needs {needed}'
      f' clients, got {len(clients)}'
    )
  return scenarios.Scenario(timer_rounds=min(timer_rounds, num_rounds), **always)


def _check_strategy(path: pathlib.Path, strategy: base.Strategy) -> None:
  """Raises ValueError if a run in the folder has another strategy."""
  digest = documents.strategy_digest
  if path.exists() and digest(files.load_strategy(path)) != digest(strategy):
    raise ValueError(
      f'{messages.quoted(str(path))} is another strategy; name another folder, or go on with it'
    )
