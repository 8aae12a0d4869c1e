"""Progress of searches, by tqdm: a bar in a terminal and in a notebook, lines elsewhere."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

DELAY = 5.0  # seconds


@contextlib.contextmanager
def steps(what: str) -> Iterator[Callable[[int, float], None]]:
  """Shows the steps and the loss of a search that takes over five seconds."""
  import tqdm  # Slow to load, as is tqdm.auto.
  from tqdm import auto

  class Bar(auto.tqdm):
    monitor_interval = 0  # No thread.

  with warnings.catch_warnings():
    warnings.simplefilter('ignore', tqdm.TqdmWarning)  # A notebook without widgets shows text.
    interval = 0.5 if sys.stderr.isatty() else 30.0
    bar = Bar(desc=what, unit=' steps', delay=DELAY, mininterval=interval, leave=False)

  def report(count: int, loss: float) -> None:
    bar.set_postfix(loss=f'{loss:.6g}', refresh=False)
    bar.update(1)

  with bar:
    yield report
