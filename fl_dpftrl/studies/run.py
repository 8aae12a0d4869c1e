"""Studies: mechanisms compared by training, begun or gone on with in a folder."""

import dataclasses
import json
import os
import pathlib
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.files import durable
from fl_dpftrl.participation import schemas
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import estimate, folders, processes, results, runner, sequential
from fl_dpftrl.studies.study import Study
from fl_dpftrl.text import messages

# Conditions of runs by `train`, as the texts that a study may not change.
_STATED = ('schema', 'clip_norm', 'report_goal', 'delta', 'workload', 'deployment_report_goal')
# Shorter studies are not worth a timed run beforehand.
_FEW_ROUNDS = 1000


def study(
  train: cells_lib.Train,
  *,
  folder: str | os.PathLike[str],
  mechanisms: Sequence[str | design_lib.Mechanism],
  epsilons: Sequence[float],
  server_learning_rates: Sequence[float],
  schema: schemas.MinSep | None = None,
  sampling: sampling_lib.Sampled | None = None,
  clip_norm: float,
  report_goal: int,
  delta: float = 1e-6,
  seeds: Sequence[int] = (0, 1, 2),
  tuning_seeds: int = 1,
  extend_rates: int = 3,
  without_noise: bool = True,
  workload: workloads.Workload = workloads.Workload(),
  deployment_report_goal: int | None = None,
  metric: str = 'accuracy',
  lower_is_better: bool | None = None,
  title: str = 'Study',
  jobs: int | None = None,
  machines: str | None = None,
  run_cpus: float = 1.0,
  run_gpus: float = 0.0,
  insecure_network: bool = False,
  until_told_apart: float | None = None,
  say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Study:
  """Compares mechanisms by training the same model with each, at equal ε.

  The noise of each mechanism is calibrated. The first seeds try every learning rate; the one with
  the best validation metric is then trained with the other seeds. An interrupted study goes on
  when it is called again; runs that have ended are kept. The folder gets a run folder for each
  cell in cells/, strategies/, results.csv, table.txt, table.md, figures and study.html.

  Args:
    train: trains a `Cell`: by `dpftrl.train` with `cell.aggregator()` and `cell.arguments`, or in
      another way with `cell.strategy` and `cell.noise_multiplier`; with
      `cell.server_learning_rate`. Returns the summary of the run, such as that of
      `Trained.summary`: a mapping with `validation` and `test`, each with the metric by its name.
    folder: folder of the study.
    mechanisms: names, as of `compare`, or `Mechanism`s.
    epsilons: target ε.
    server_learning_rates: rates to try, the same for every mechanism.
    schema: participation that each run keeps to. A run that does not has failed.
    sampling: scheme by which runs in one place draw their batches in secret, in place of a schema:
      `cell.sampling` is it, with a part for each band of `cell.strategy`. `identity` is then
      DP-SGD. `banded` and `banded_toeplitz` without a size have the number of bands with the least
      noise at each ε.
    clip_norm: L2 bound on a device's update.
    report_goal: fixed divisor of the sum of a round.
    delta: δ at which ε is stated.
    seeds: seeds of the runs.
    tuning_seeds: number of first seeds that choose the rate.
    extend_rates: most further rates of a mechanism whose best rate is at an end of the grid.
    without_noise: whether to train without noise, too.
    workload: momentum and learning-rate schedule of the server, to predict the noise in the model.
    deployment_report_goal: report goal of a hypothetical deployment with the same noise on the
      mean, to which ε refer then; None for the ε of the runs.
    metric: what is compared: 'accuracy', from 0 to 1 and shown in percent, or the name of any other
      number, such as 'loss'.
    lower_is_better: True for a loss or an error, False for a score; None for an accuracy alone.
    title: title of the table, figures and page.
    jobs: runs at the same time, each in a process of its own; `train` must then be a function of
      a module. None for one after another in this process, or for as many as `machines` have room
      for.
    machines: host:port of the head of a Ray cluster that trains the runs, or 'auto' for the one
      that RAY_ADDRESS names or that runs on this machine. All its machines must see `folder` at
      the same path. None for this machine.
    run_cpus, run_gpus: processors and GPUs of a run on `machines`; may be fractions.
    insecure_network: accepts `machines` beside this one that neither ask for a token nor encrypt.
    until_told_apart: hours for which the study adds seeds, after those that are given, where the
      best mechanism and the next are not told apart; intervals are then wider, for looking again.
      A later call goes on. None to add none.
    say: takes progress, in lines.

  Raises:
    ValueError: for an argument that does not fit, for a folder with another study, for a cluster
      that cannot be reached or used, and with `jobs` for a script that calls this without
      `if __name__ == '__main__':`.
    ImportError: for `machines` without Ray.
    RuntimeError: if the cluster is gone; the study can go on later.
  """
  processes.check_not_starting()
  if sampling is not None and schema is None:
    _check_sampling(sampling, deployment_report_goal)
    schema = schemas.MinSep(num_rounds=sampling.num_rounds, max_participations=1)
  elif schema is None or sampling is not None:
    given = 'neither' if schema is None else 'both'
    raise ValueError(f'give a study schema or sampling; it has {given}')
  conditions = cells_lib.Conditions(
    schema=schema,
    sampling=sampling,
    clip_norm=clip_norm,
    report_goal=report_goal,
    delta=delta,
    workload=workload,
    deployment_report_goal=deployment_report_goal,
  )
  design = design_lib.parse(
    {
      'title': title,
      'flags': [
        f'{name}={getattr(conditions, name)}'
        for name in (*_STATED, *(('sampling',) if sampling else ()))
      ],
      'mechanisms': _values(mechanisms),
      'epsilons': _values(epsilons),
      'epsilon_of': design_lib.DEPLOYMENT if deployment_report_goal else design_lib.RUN,
      'server_learning_rates': _values(server_learning_rates),
      'seeds': _values(seeds),
      'tuning_seeds': tuning_seeds,
      'extend_rates': extend_rates,
      'without_noise': without_noise,
      'metric': metric,
      'lower_is_better': lower_is_better,
    }
  )
  if jobs is not None:
    schemas.positive_integer('jobs', jobs)
  path, elsewhere, preload = pathlib.Path(folder), None, ()
  if machines is not None:
    path = path.resolve()  # Other processes have other working directories.
    elsewhere = _machines(
      machines,
      train,
      jobs=jobs,
      cpus=run_cpus,
      gpus=run_gpus,
      insecure_network=insecure_network,
      say=say,
    )
  elif jobs is not None:
    _check_importable(train)
    if train.__module__ != '__main__':  # A script is not loaded beforehand: it would run there.
      preload = (train.__module__,)
  task = cells_lib.Task(conditions=lambda setting: conditions, train=train, preload=preload)
  return run(
    design, task, path, jobs=jobs, machines=elsewhere, say=say, until_told_apart=until_told_apart
  )


def _machines(address: str, train: cells_lib.Train, **options: Any) -> runner.Pools:
  """Returns the machines of a cluster, which need Ray."""
  try:
    from fl_dpftrl.studies import machines
  except ImportError as error:
    if not (error.name or '').startswith('ray'):
      raise
    raise ImportError(
      'machines of a study need Ray: install fl_dpftrl[machines], or ray>=2.55', name='ray'
    ) from error
  return machines.Machines.of(address, train, **options)


def _values(given: Any) -> Any:
  """Returns a list of what can be one, NumPy's numbers as Python's; else what was given."""
  if isinstance(given, str) or not isinstance(given, Iterable):
    return given  # The design says what is wrong with it.
  return [value.item() if isinstance(value, np.generic) else value for value in given]


def _check_sampling(sampling: object, deployment_report_goal: int | None) -> None:
  if not isinstance(sampling, sampling_lib.Sampled):
    raise ValueError(
      'sampling must be a scheme that amplifies, CyclicPoisson or CyclicFixedSize, got'
      f' {messages.kind(sampling)}; shuffled batches have a schema'
    )
  if deployment_report_goal is not None:
    raise ValueError('deployment_report_goal has no meaning where batches are drawn: leave it out')


def _check_importable(train: cells_lib.Train) -> None:
  """Raises ValueError for a function that other processes cannot import."""
  try:
    pickle.dumps(train)
  except (AttributeError, TypeError, pickle.PicklingError):
    raise ValueError(
      'train must be a function of a module where runs have processes of their own: move it into'
      ' one, or leave jobs out'
    ) from None


def run(
  design: design_lib.Design,
  task: cells_lib.Task,
  folder: pathlib.Path,
  *,
  jobs: int | None,
  machines: runner.Pools | None = None,
  say: Callable[[str], None],
  image_kind: str = 'png',
  until_told_apart: float | None = None,
) -> Study:
  """Runs what is left of a study, and writes its table, figures and page.

  Args:
    design: what is compared.
    task: what is trained.
    folder: folder of the study, which may hold a part of it.
    jobs: runs at the same time, each in a process; None for one after another in this process.
    machines: cluster that runs the runs instead.
    say: takes progress, in lines.
    image_kind: kind of the figures' files: 'png', 'svg' or 'pdf'.
    until_told_apart: hours for which seeds are added; None to add none.

  Raises:
    OSError: if a file cannot be read or written.
    ValueError: naming a file, argument or setting that does not fit.
    KeyboardInterrupt: on a signal that raises it; the study can go on later.
  """
  sequential.check_hours(until_told_apart)
  with folders.held(design, task, folder):
    if task.timed is not None and jobs is not None and _is_long(design, task, folder):
      say('timing a few rounds, to say how long the study takes')
      say(estimate.measure(design, task, folder, jobs=jobs).text())
    cells = cells_lib.prepare(design, task, folder, say)
    text = json.dumps(dataclasses.asdict(design), indent=2, ensure_ascii=False) + '\n'
    durable.write_durably(folder / folders.STUDY_NAME, text.encode())
    added = sequential.Added.read(folder)
    found = _train(cells, task, jobs, machines, say, added, until_told_apart)
    finished = Study(design=design, results=tuple(found), folder=folder, looks=added.looks)
    finished.write(image_kind=image_kind)
  from fl_dpftrl.studies import sentences

  for advice in (*sentences.untuned(finished.rows), *sentences.few_seeds(finished.rows)):
    say(advice)
  say(f'page: {folder / "study.html"}')
  if failed := len(finished.failed):
    say(f'{failed} of {len(finished.results)} runs failed; run the study again to try them anew')
  return finished


def _is_long(design: design_lib.Design, task: cells_lib.Task, folder: pathlib.Path) -> bool:
  """Returns whether a study is to say beforehand how long it takes."""
  if any((folder / cells_lib.CELLS_NAME).glob(f'*/{cells_lib.SUMMARY_NAME}')):
    return False  # It goes on.
  rounds = max(task.conditions(setting).schema.num_rounds for setting in design.settings)
  return design.num_cells * rounds > _FEW_ROUNDS


def _train(
  cells: cells_lib.Cells,
  task: cells_lib.Task,
  jobs: int | None,
  machines: runner.Pools | None,
  say: Callable[[str], None],
  added: sequential.Added,
  until_told_apart: float | None,
) -> list[results.Result]:
  """Runs the cells that choose learning rates, those of the chosen ones, and added seeds."""
  design = cells.design
  at_a_time = (machines.jobs if machines is not None else jobs) or 1
  progress = runner.Progress(total=design.num_cells, jobs=at_a_time, say=say)

  def told(cell: cells_lib.Cell) -> str:
    result = results.read(cell)
    if result.test is None:
      return f'{cell.name} {result.status}: {result.reason}'
    return f'{cell.name}: test {cell.metric.name} {cell.metric.shown(result.test)}'

  def ended(wanted: Sequence[cells_lib.Cell]) -> list[results.Result]:
    failed = runner.run(wanted, task, jobs=jobs, machines=machines, progress=progress, told=told)
    return [results.read(cell, failed) for cell in wanted]

  tuned = ended(list(cells.tuning()))
  while further := results.further(design, tuned):
    more = list(cells.extended(further))
    progress.total += len(more)
    named = [f'{cell.setting.label} {cell.server_learning_rate:g}' for cell in more]
    say(f'the best rate is at an end of its grid, so further ones: {", ".join(named)}')
    tuned += ended(more)
  rates = results.chosen_rates(design, tuned)
  found = tuned + ended(list(cells.final(rates)))
  begun = list(added.cells(cells, rates))
  progress.total += len(begun)
  found += ended(begun)

  def run_added(wanted: Sequence[cells_lib.Cell]) -> list[results.Result]:
    progress.total += len(wanted)
    return ended(wanted)

  if until_told_apart is not None:
    sequential.extend(added, cells, found, hours=until_told_apart, ended=run_added, say=say)
  return found


def gather(design: design_lib.Design, task: cells_lib.Task, folder: pathlib.Path) -> Study:
  """Returns the results that a study's folder holds, and trains nothing.

  Raises:
    OSError: if a file cannot be read.
    ValueError: naming a setting without a strategy, or a file that does not fit.
  """
  folders.check(design, folder)
  cells = cells_lib.prepare(design, task, folder)
  read_results = [results.read(cell) for cell in cells.tuning()]
  while further := results.further(design, read_results):
    read_results += [results.read(cell) for cell in cells.extended(further)]
  chosen = results.chosen_rates(design, read_results)
  read_results += [results.read(cell) for cell in cells.final(chosen)]
  added = sequential.Added.read(folder)
  read_results += [results.read(cell) for cell in added.cells(cells, chosen)]
  return Study(design=design, results=tuple(read_results), folder=folder, looks=added.looks)
