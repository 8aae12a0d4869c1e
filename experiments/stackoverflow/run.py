"""One run: its flags against its data, and then its training."""

import gc
import pathlib
import sys
import types
from collections.abc import Callable

from experiments.stackoverflow import configuration, datasets, setting
from experiments.stackoverflow import machines as machines_lib
from fl_dpftrl.text import messages
from fl_dpftrl.training import interrupts


def run(
  hparams: configuration.Hparams,
  folder: pathlib.Path,
  *,
  machines: machines_lib.Machines = machines_lib.Machines(),
  compare_with: pathlib.Path | None = None,
  figures: str = 'png',
  on_step: Callable[[str, int], None] = lambda step, round_index: None,
  interrupt: interrupts.Interrupt | None = None,
) -> None:
  """Trains, or goes on training, in a folder.

  Args:
    hparams: the run's flags.
    folder: where all its files are.
    machines: that train clients and make noise.
    compare_with: folder of the same run without noise, for the summary.
    figures: kind of the plot: 'png', 'svg' or 'pdf'.
    on_step: told each step of the training loop as it is completed.
    interrupt: looked at between the steps; None if nobody interrupts.

  Raises:
    ValueError: for flags that do not fit the data or each other, and where the
      run in the folder cannot go on.
  """
  say = lambda line: print(messages.one_line(line), file=sys.stderr, flush=True)
  dataset = datasets.load_for(hparams)
  if dataset.digest:
    say(f'{dataset.name}: {len(dataset.train_clients)} training clients, digest {dataset.digest}')
  scenario = setting.scenario(hparams, len(dataset.train_clients))
  strategy = setting.strategy(hparams, folder, scenario.planned_schema(hparams.num_rounds), say)
  hparams = setting.calibrated(hparams, strategy)
  training = _training()
  training.train(
    hparams,
    folder,
    dataset=dataset,
    scenario=scenario,
    strategy=strategy,
    machines=machines,
    compare_with=compare_with,
    figures=figures,
    on_step=on_step,
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
