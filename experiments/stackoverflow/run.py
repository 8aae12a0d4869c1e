"""One run: its flags against its data, its devices and strategy, and then its training."""

import dataclasses
import gc
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import fl_dpftrl as dpftrl
from experiments.stackoverflow import configuration, datasets, interrupts, remote_machines
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.search import optimizers
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.support.text import messages

_MECHANISM, _OBJECTIVE = 'blt', 'max'


def run(
  hparams: configuration.Hparams,
  folder: pathlib.Path,
  *,
  machines: remote_machines.Machines = remote_machines.Machines(),
  compare_with: pathlib.Path | None = None,
  figures: str = 'png',
  interrupt: interrupts.Interrupt | None = None,
) -> None:
  """Trains, or goes on training, in a folder.

  Args:
    compare_with: folder of the same run without noise, for the summary.
    figures: kind of the plot: 'png', 'svg' or 'pdf'.
    interrupt: looked at between the rounds; None if nobody interrupts.
  """
  say = lambda line: print(messages.one_line(line), file=sys.stderr, flush=True)
  dataset = datasets.load_for(hparams)
  if dataset.digest:
    say(f'{dataset.name}: {len(dataset.train_clients)} training clients, digest {dataset.digest}')
  if hparams.public_epochs and dataset.public is None:
    raise ValueError(
      f'--public_epochs={hparams.public_epochs} needs public text, which --dataset=docstrings has'
    )
  devices = scenario(hparams, len(dataset.train_clients))
  # A run without an end names its strategy.
  schema = None if hparams.loss_budget else devices.planned_schema(hparams.num_rounds)
  chosen = strategy(hparams, folder, schema, say)
  hparams = calibrated(hparams, chosen)
  training = _training()
  training.train(
    hparams,
    folder,
    dataset=dataset,
    scenario=devices,
    strategy=chosen,
    machines=machines,
    compare_with=compare_with,
    figures=figures,
    interrupt=interrupt or interrupts.Interrupt(),
    say=say,
  )


def _training() -> types.ModuleType:
  """Imports what trains, which is slow: called once the flags are known to fit the data.

  TensorFlow makes a million objects that stay. No garbage is looked for among them, neither
  while they are made nor later.
  """
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    from experiments.stackoverflow import training
  finally:
    if was_enabled:
      gc.enable()
  gc.freeze()
  return training


def scenario(hparams: configuration.Hparams, num_clients: int) -> dpftrl.Scenario:
  """Returns the devices, of which number i has the data of client i, and their rounds."""
  num_devices = num_clients
  if hparams.population is not None:
    if hparams.population > num_clients:
      raise ValueError(
        f'--population={hparams.population} is more than the {num_clients}'
        f' training clients of {hparams.dataset}'
      )
    num_devices = hparams.population
  if hparams.report_goal > num_devices:
    raise ValueError(
      f'--report_goal={hparams.report_goal} is more than the {num_devices}'
      f' devices of {hparams.dataset}'
    )
  timers = min(hparams.timer_rounds or 1, hparams.num_rounds)
  if timers * hparams.report_goal > num_devices:
    raise ValueError(
      f'--timer_rounds={hparams.timer_rounds} with'
      f' --report_goal={hparams.report_goal} needs'
      f' {timers * hparams.report_goal} devices and there are {num_devices}:'
      ' a round would find too few whose timer has run; a timer of'
      f' {num_devices // hparams.report_goal} would do'
    )
  timer: dict[str, Any] = {
    'timer_rounds': hparams.timer_rounds,
    'max_participations': hparams.max_participations,
  }
  if hparams.loss_budget:
    timer = {'loss_budget': enforced(hparams), 'strategy': hparams.strategy}
  described = dpftrl.Scenario(
    population=num_devices,
    report_goal=hparams.report_goal,
    timer_hours=hparams.timer_hours,
    **timer,
    seed=hparams.seed,
    availability=hparams.availability,
    clients_per_round=hparams.clients_per_round or hparams.report_goal,
    dropout=hparams.dropout,
  )
  # Traces are read once, and what is out of range is named before TensorFlow is loaded.
  availability = described.simulation().population.availability
  return dataclasses.replace(described, availability=availability)


def strategy(
  hparams: configuration.Hparams,
  folder: pathlib.Path,
  schema: dpftrl.MinSep | None,
  say: Callable[[str], None],
) -> dpftrl.Strategy:
  """Returns the run's strategy: that of the run in the folder, if there is one."""
  path = folder / files.NAME
  if path.exists():
    return dpftrl.load_strategy(path)
  if hparams.strategy is not None:
    chosen = dpftrl.load_strategy(hparams.strategy)
    if hparams.mechanism not in (None, chosen.family):
      raise ValueError(
        f'--mechanism={hparams.mechanism} but --strategy={hparams.strategy} is'
        f' of the family {chosen.family}; leave one of the two out'
      )
    base.check_num_rounds(chosen, hparams.num_rounds)
    return chosen
  mechanism = hparams.mechanism or _MECHANISM
  optimizers.check_family(mechanism)
  if mechanism not in optimizers.OPTIMIZERS:
    raise ValueError(
      f'--mechanism={mechanism} is unknown; known are {", ".join(optimizers.OPTIMIZERS)}'
    )
  if mechanism not in files.parameter_free():
    say(f'optimising {mechanism} for {schema.num_rounds} rounds with min-sep {schema.min_sep}')
  return dpftrl.optimize(mechanism, schema, objective=_OBJECTIVE)


def calibrated(hparams: configuration.Hparams, chosen: dpftrl.Strategy) -> configuration.Hparams:
  """Returns the flags with the noise multiplier that a target ε asks for.

  The noise is calibrated for the participation that the timers enforce. A noise multiplier that
  is given, or was recorded by the run's first start, stays as it is.
  """
  if hparams.noise_multiplier is not None:
    return hparams
  participation, size = enforced(hparams), arithmetics.MANY_COORDINATES
  guarantee = dpftrl.calibrate(
    chosen, participation, epsilon=hparams.epsilon, delta=hparams.delta, num_coordinates=size
  )
  return dataclasses.replace(hparams, noise_multiplier=guarantee.noise_multiplier)


def enforced(hparams: configuration.Hparams) -> Any:
  """Returns the participation that timers in rounds, meters, or none, enforce."""
  min_sep, most = min(hparams.timer_rounds or 1, hparams.num_rounds), hparams.max_participations
  if hparams.loss_budget:
    return dpftrl.LossBudget(max_participations=most, min_sep=hparams.timer_rounds)
  if most is not None:
    return dpftrl.MinSep(None, hparams.timer_rounds, most)
  return dpftrl.MinSep(num_rounds=hparams.num_rounds, min_sep=min_sep)
