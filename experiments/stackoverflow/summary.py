"""summary.json: everything about a finished run that a table of runs needs."""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from experiments.stackoverflow import configuration
from fl_dpftrl import digests
from fl_dpftrl.families import base
from fl_dpftrl.replaying import statement as statement_lib

if TYPE_CHECKING:
  from fl_dpftrl.learning import metrics  # Loads TensorFlow.

NAME = 'summary.json'

_FLAGS = (
  'dataset',
  'noise_multiplier',
  'clip_norm',
  'clip_quantile',
  'clip_rounds',
  'report_goal',
  'client_optimizer',
  'client_learning_rate',
  'server_optimizer',
  'server_learning_rate',
  'server_momentum',
  'seed',
)


def content(
  hparams: configuration.Hparams,
  strategy: base.Strategy,
  statement: statement_lib.Statement,
  *,
  table: 'metrics.MetricsTable',
  test: Mapping[str, float],
  other: Mapping[str, Any],
) -> dict[str, Any]:
  """Returns the content of summary.json.

  Args:
    hparams: flags of the run.
    strategy: strategy of its noise.
    statement: replay of its log.
    table: one row a round.
    test: metrics of the final model on test data.
    other: further entries.

  Returns:
    Values for JSON. `rho` and `epsilon` are those that the log proves in the
    worst case, null without a guarantee; `declared` has those of the schema
    that the timers enforce. `last_clip_norm` is that of the last round. `seconds` is the sum
    over rounds, with evaluation.
  """
  stated = statement.to_json()
  worst = stated['worst_case']
  flags = hparams.to_json()
  return {
    'mechanism': strategy.family,
    'strategy_digest': digests.strategy_digest(strategy),
    **{name: flags[name] for name in _FLAGS if name in flags},
    'sensitivity': worst['sensitivity'],
    'sensitivity_kind': worst['sensitivity_kind'],
    'rho': worst['rho'],
    'epsilon': worst['epsilon'],
    'delta': hparams.delta,
    'declared': stated.get('declared'),
    'num_rounds': statement.num_rounds,
    'num_participations': stated['num_participations'],
    'participating_devices': stated['num_devices'],
    'min_sep': statement.min_sep,
    'max_participations': statement.max_participations,
    'last_clip_norm': _last_clip_norm(hparams, table),
    'validation': finite(_last_validation(table, test)),
    'test': finite(test),
    'seconds': round(sum(table.column('seconds').values()), 3),
    **other,
  }


def _last_clip_norm(hparams: configuration.Hparams, table: 'metrics.MetricsTable') -> float:
  column = table.column('aggregator/clip_norm')
  return column[max(column)] if column else hparams.clip_norm


def _last_validation(table: 'metrics.MetricsTable', names: Iterable[str]) -> dict[str, float]:
  """Returns the metrics of the last evaluation on validation data."""
  columns = {name: table.column(f'validation/{name}') for name in names}
  return {name: column[max(column)] for name, column in columns.items() if column}


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
  """Returns measurements for JSON, in which NaN and infinities are null."""
  return {name: value if math.isfinite(value) else None for name, value in values.items()}
