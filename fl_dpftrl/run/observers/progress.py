"""Observer for people: progress lines."""

import datetime
import time
from typing import Any, TextIO

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.run.observers import measuring, observer
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import roundings

_SECONDS = 30.0  # between lines of a run that is not watched


class ProgressLine(observer.Observer):
  """Prints a line of progress after a round: figures, ε so far where it is measured, time left."""

  def __init__(self, every: int = 1, *, stream: TextIO | None = None):
    """Takes the rounds between two lines.

    Args:
      every: a line follows after 30 seconds all the same.
      stream: for every line, such as stderr; a terminal has one line that changes. None for `say`
        of `train`, or for stdout.
    """
    self._every, self._stream = checks.whole(every=every), stream
    self._began, self._printed = 0.0, time.monotonic()
    self._first: int | None = None
    self._evaluated: dict[str, Any] = {}

  def begin(self, run, round_index=None):
    if round_index is not None and self._first is None:
      self._began = self._printed = time.monotonic()
      self._first = round_index

  def released(self, run, round_index, measurements):
    self._evaluated |= {
      name: value
      for name, value in measurements.items()
      if name == measuring.EPSILON or name.startswith(measuring.VALIDATION)
    }
    line, stream = self.line(run, round_index, measurements), self._stream
    if stream is not None and stream.isatty():
      end = '\n' if round_index + 1 == run.max_rounds else ''
      stream.write(f'\r\033[K{line}{end}')
      stream.flush()
    elif (
      measuring.is_due(run, round_index, self._every)
      or time.monotonic() - self._printed >= _SECONDS
    ):
      self._printed = time.monotonic()
      if stream is not None:
        stream.write(line + '\n')
        stream.flush()
      else:
        getattr(run, 'say', print)(line)

  def line(self, run: Any, round_index: int, measurements: observer.Measurements) -> str:
    """Returns the line after a round."""
    done = round_index + 1
    has_end = run.max_rounds < schemas.LAST_ROW
    parts = [f'round {done}/{run.max_rounds}' if has_end else f'round {done}']
    for name, value in measurements.items():
      if name.endswith('train/loss'):
        parts.append(f'training loss {value:.3f}')
      if name.startswith(measuring.RELEASED):
        metric = name.removeprefix(measuring.RELEASED)
        margin = 1.96 * measurements[f'{measuring.DEVIATION}{metric}']
        shown = f'{value:.3f} ± {margin:.3f}'
        if metric == 'accuracy':
          shown = f'{100.0 * value:.2f} ± {100.0 * margin:.2f} %'
        parts.append(f"clients' {metric} {shown}")
    validation = {n: v for n, v in self._evaluated.items() if n.startswith(measuring.VALIDATION)}
    if measuring.ACCURACY in validation:
      parts.append(f'validation accuracy {100.0 * validation[measuring.ACCURACY]:.2f} %')
    else:
      for name, value in list(validation.items())[:2]:
        parts.append(f'{name.replace("/", " ")} {value:.4g}')
    if measuring.EPSILON in self._evaluated:
      epsilon = self._evaluated[measuring.EPSILON]
      parts.append(f'ε so far {epsilon if isinstance(epsilon, str) else roundings.up(epsilon)}')
    if machines := getattr(run, 'machines', lambda: '')():
      parts.append(machines)
    if has_end and self._first is not None and done > self._first:
      pace = (time.monotonic() - self._began) / (done - self._first)
      seconds = round(pace * (run.max_rounds - done))
      parts.append(f'{datetime.timedelta(seconds=seconds)} left')
    return ' | '.join(parts)
