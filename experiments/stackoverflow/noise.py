"""The source of a run's noise: TFF's state, or rows kept outside it."""

import pathlib

from experiments.stackoverflow import configuration, setting
from experiments.stackoverflow import machines as machines_lib
from fl_dpftrl import adaptive_clipping
from fl_dpftrl.aggregators import factory as factory_lib
from fl_dpftrl.families import base
from fl_dpftrl.learning import loop
from fl_dpftrl.noise import engine

ROWS_NAME = 'rows'
# State costs a round about 18 ms a megabyte; a row by file costs nothing.
_MOST_STATE_BYTES = 4_000_000


def aggregator(
  hparams: configuration.Hparams,
  strategy: base.Strategy,
  num_parameters: int,
  folder: pathlib.Path,
  machines: machines_lib.Machines = machines_lib.Machines(),
) -> tuple[factory_lib.CorrelatedNoiseFactory, engine.RowServer | None]:
  """The run's aggregator, and what serves its rows where TFF does not carry them.

  Args:
    hparams: the run's flags.
    strategy: of the noise.
    num_parameters: of the model.
    folder: of the run; rows and their seed are among its checkpoints.
    machines: of which some may make the rows.

  Raises:
    ValueError: for flags that do not fit.
  """
  clipping = setting.clip_norm(hparams)
  size, stddev = num_parameters, hparams.noise_multiplier * hparams.clip_norm
  if isinstance(clipping, adaptive_clipping.AdaptiveClipping):
    size += adaptive_clipping.NUM_COUNTS
    stddev = clipping.update_noise_multiplier(hparams.noise_multiplier, hparams.report_goal)
  same = dict(
    noise_multiplier=hparams.noise_multiplier,
    clip_norm=clipping,
    report_goal=hparams.report_goal,
    zeroing_norm=hparams.zeroing_norm,
  )
  memory = hparams.noise_memory or _default(strategy, hparams.num_rounds, num_parameters)
  if memory == 'state' and machines.noise_workers:
    raise ValueError(
      '--noise_worker_addresses is for noise that is made beside TFF: give'
      ' --noise_memory=memory with it'
    )
  if memory == 'state':
    return (
      factory_lib.CorrelatedNoiseFactory(strategy, **same, noise_seed=hparams.noise_seed),
      None,
    )
  rows_folder = folder / loop.CHECKPOINTS_NAME / ROWS_NAME
  in_process = machines.runtime == 'in_process' and not machines.workers
  was_served = (rows_folder / engine.MARK_NAME).exists()  # By an earlier version or a worker.
  if memory == 'memory' and in_process and not machines.noise_workers and not was_served:
    factory = factory_lib.CorrelatedNoiseFactory(
      strategy, **same, noise_seed=hparams.noise_seed, memory='engine', noise_folder=rows_folder
    )
    return factory, None
  rows = engine.RowServer(
    strategy,
    rows_folder,
    size=size,
    num_rounds=hparams.num_rounds,
    stddev=stddev,
    noise_seed=hparams.noise_seed,
    memory=memory,
    workers=machines.noise_workers,
    worker_certificates=machines.noise_certificates,
    worker_timeout=machines.worker_timeout,
  )
  return factory_lib.CorrelatedNoiseFactory(strategy, **same, memory=rows), rows


def _default(strategy: base.Strategy, num_rounds: int, num_parameters: int) -> str:
  state_bytes = 4 * num_parameters * strategy.memory_copies(num_rounds)
  return 'memory' if state_bytes > _MOST_STATE_BYTES else 'state'
