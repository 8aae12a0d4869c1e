"""Table of a run, metrics.csv: one row for each round whose result was used."""

from fl_dpftrl import metrics
from fl_dpftrl.observers import measuring, observer
from fl_dpftrl.training import loop


class Table(observer.Observer):
  """Writes what was measured after each round to metrics.csv."""

  def __init__(self, table: metrics.MetricsTable):
    self._table = table
    self.history = table.history

  @property
  def num_rounds(self) -> int:
    """Number of rounds up to the last one that is in the table."""
    return max(self._table.rounds, default=-1) + 1

  def restore(self, run: loop.TrainingRun) -> None:
    """Takes out rows of lost rounds, and names rows that are lost."""
    latest = run.checkpoint
    used = set(range(latest.num_rounds)) - set(latest.burnt)
    self._table.keep_only(used)
    # An interrupted run may lack its last row, which is released next.
    lost = sorted(used - set(self._table.rounds) - {latest.num_rounds - 1})
    if lost:
      more = ', …' if len(lost) > 10 else ''
      run.say(
        f'{self._table.path} has lost {len(lost)} rounds ({", ".join(map(str, lost[:10]))}{more}):'
        ' their measurements are gone, and sums over rounds in the report lack them; model, noise,'
        ' log and guarantee are not touched'
      )

  def released(self, run, round_index, measurements):
    if measurements:
      self._table.put(round_index, measurements)

  def released_metrics(self) -> metrics.History:
    """Returns the metrics that were released with noise, by name."""
    history, start = self.history(), measuring.RELEASED
    columns = history.measured.items()
    named = {n.removeprefix(start): column for n, column in columns if n.startswith(start)}
    return metrics.History(history.rounds, named)
