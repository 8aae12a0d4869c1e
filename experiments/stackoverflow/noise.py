"""The aggregator of a run, with its noise in TFF's state or made outside it."""

import pathlib
from typing import Any

from experiments.stackoverflow import configuration, setting
from experiments.stackoverflow import machines as machines_lib
from fl_dpftrl.aggregators import factory as factory_lib
from fl_dpftrl.families import base
from fl_dpftrl.learning import loop

ROWS_NAME = 'rows'
# Of runs of an earlier release.
_SERVED_NAME = 'served.json'
# State is copied in each round; a row of an engine is made while clients train.
_MOST_STATE_BYTES = 4_000_000


def aggregator(
  hparams: configuration.Hparams,
  strategy: base.Strategy,
  num_parameters: int,
  folder: pathlib.Path,
  machines: machines_lib.Machines = machines_lib.Machines(),
) -> factory_lib.CorrelatedNoiseFactory:
  """Returns the run's aggregator.

  Args:
    hparams: the run's flags.
    strategy: strategy of the noise.
    num_parameters: number of the model's parameters.
    folder: folder of the run; an engine's snapshots are among its checkpoints.
    machines: machines of which some may make the rows.

  Raises:
    ValueError: for flags that do not fit, or a run of an earlier release.
  """
  rows_folder = folder / loop.CHECKPOINTS_NAME / ROWS_NAME
  if (rows_folder / _SERVED_NAME).exists():
    raise ValueError(
      f'{rows_folder / _SERVED_NAME}: the noise of this run was made outside the training process,'
      ' which release 0.1 alone continues; its log can be replayed'
    )
  memory = hparams.noise_memory or _default(strategy, hparams.num_rounds, num_parameters)
  if memory == 'recomputed':
    raise ValueError('--noise_memory=recomputed is gone: give engine, whose buffers may be a file')
  if memory == 'state':
    if machines.noise_machines:
      raise ValueError('--noise_machines is for noise outside TFF: give --noise_memory=engine too')
    kept: dict[str, Any] = dict(memory='state')
  else:
    kept = dict(
      memory='engine', noise_folder=rows_folder, noise_machines=machines.noise_machines or None
    )
  return factory_lib.CorrelatedNoiseFactory(
    strategy,
    noise_multiplier=hparams.noise_multiplier,
    clip_norm=setting.clip_norm(hparams),
    report_goal=hparams.report_goal,
    zeroing_norm=hparams.zeroing_norm,
    noise_seed=hparams.noise_seed,
    **kept,
  )


def _default(strategy: base.Strategy, num_rounds: int, num_parameters: int) -> str:
  state_bytes = 4 * num_parameters * strategy.memory_copies(num_rounds)
  return 'engine' if state_bytes > _MOST_STATE_BYTES else 'state'
