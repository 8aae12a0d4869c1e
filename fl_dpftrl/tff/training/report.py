"""Files of a run: its table, and once it is finished its statement, report and model."""

import dataclasses
import io
import json
import os
import pathlib
from typing import Any

import numpy as np

from fl_dpftrl.prove.reports import privacy
from fl_dpftrl.run import live_run
from fl_dpftrl.run.observers import measuring, observer
from fl_dpftrl.support import metrics
from fl_dpftrl.support.files import durable
from fl_dpftrl.tff.training import loop, trained_models

STATEMENT_NAME = 'privacy.json'
REPORT_NAME = 'privacy.html'
MODEL_NAME = 'model.npz'
_CELLS = 'cells'  # folder of a study that holds one for each cell
_COUNTS = ('clipped_count', 'zeroed_count', 'rejected_count')


class Table(observer.Observer, metrics.MetricsTable):
  """Writes what was measured after each round to metrics.csv."""

  @property
  def num_rounds(self) -> int:
    """Number of rounds up to the last one that is in the table."""
    return max(self.rounds, default=-1) + 1

  def restore(self, run: loop.TrainingRun) -> None:
    """Takes out rows of lost rounds, and names rows that are lost; ValueError for changed ones."""
    self.bind(run.guard.log.run)
    latest = run.checkpoint
    used = set(range(latest.num_rounds)) - set(latest.burnt)
    self.keep_only(used)
    # An interrupted run may lack its last row, which is released next.
    lost = sorted(used - set(self.rounds) - {latest.num_rounds - 1})
    if lost:
      more = ', …' if len(lost) > 10 else ''
      run.say(
        f'{self.path} has lost {len(lost)} rounds ({", ".join(map(str, lost[:10]))}{more}):'
        ' their measurements are gone, and sums over rounds in the report lack them; model, noise,'
        ' log and guarantee are not touched'
      )

  def released(self, run, round_index, measurements):
    if measurements:
      self.put(round_index, measurements)

  def released_metrics(self) -> metrics.History:
    """Returns the metrics that were released with noise, by name."""
    history, start = self.history(), measuring.RELEASED
    columns = history.measured.items()
    named = {n.removeprefix(start): column for n, column in columns if n.startswith(start)}
    return metrics.History(history.rounds, named)


def write(run: loop.TrainingRun, weights: Any, history: metrics.History) -> trained_models.Trained:
  """Replays the log, and writes the statement, its report and the model."""
  statement = run.statement()
  (delta,) = statement.deltas
  setting = dataclasses.replace(
    live_run.shown_setting(run, delta),
    run=_name(run.folder),
    burnt_rounds=run.checkpoint.burnt,
    **_counts(run, history),
  )
  figures = json.dumps(statement.to_json(), indent=2, allow_nan=False, default=str) + '\n'
  durable.write_durably(run.folder / STATEMENT_NAME, figures.encode(), private=True)
  privacy.write_report(run.folder / REPORT_NAME, statement, setting=setting)
  write_model(run.folder / MODEL_NAME, weights)
  return trained_models.Trained(
    model=weights,
    statement=statement,
    history=history,
    folder=run.folder,
    delta=delta,
    setting=setting,
  )


def _name(folder: pathlib.Path) -> str:
  """Returns the name of a run's folder, or of the cell of a study that it is in."""
  return folder.parent.name if folder.parent.parent.name == _CELLS else folder.name


def write_model(path: str | os.PathLike[str], weights: Any) -> None:
  """Writes only a model's weights: neither noise nor anything of a device."""
  arrays: dict[str, Any] = {f'weight{i}': np.asarray(w) for i, w in enumerate(weights.trainable)}
  arrays |= {f'state{i}': np.asarray(w) for i, w in enumerate(weights.non_trainable)}
  content = io.BytesIO()
  np.savez(content, **arrays)
  durable.write_durably(path, content.getvalue())


def _counts(run: loop.TrainingRun, history: metrics.History) -> dict[str, Any]:
  """Returns the sums over rounds of those counts of the aggregator that have no noise."""
  exact = [name for name in _COUNTS if f'aggregator.{name}' in run.exact_metrics]
  return {name: int(sum(history.column(f'aggregator/{name}').values())) for name in exact}
