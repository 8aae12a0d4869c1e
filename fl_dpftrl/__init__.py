"""Federated learning with correlated noise, and the ε that its log proves.

The names here load on first use; TensorFlow only with a name that needs it.
"""

import importlib
from typing import Any

__version__ = '0.1.0'

_HOMES = {
  'BLT': 'fl_dpftrl.families.blt',
  'Banded': 'fl_dpftrl.families.banded',
  'BandedToeplitz': 'fl_dpftrl.families.banded_toeplitz',
  'CorrelatedNoiseFactory': 'fl_dpftrl.aggregators',
  'Dense': 'fl_dpftrl.families.dense',
  'FixedSeparation': 'fl_dpftrl.participation',
  'Guarantee': 'fl_dpftrl.accounting',
  'Identity': 'fl_dpftrl.families.identity',
  'LogWriter': 'fl_dpftrl.logs.schema',
  'LowRank': 'fl_dpftrl.families.low_rank',
  'MinSep': 'fl_dpftrl.participation',
  'NoiseByReferenceFactory': 'fl_dpftrl.aggregators.by_reference',
  'RowServer': 'fl_dpftrl.noise.engine',
  'Stamped': 'fl_dpftrl.families.stamped',
  'Strategy': 'fl_dpftrl.families.base',
  'TreeFull': 'fl_dpftrl.families.tree_full',
  'TreeOnline': 'fl_dpftrl.families.tree_online',
  'account': 'fl_dpftrl.accounting',
  'calibrate': 'fl_dpftrl.accounting',
  'load_strategy': 'fl_dpftrl.catalogue',
  'register': 'fl_dpftrl.families.registry',
  'write_log': 'fl_dpftrl.logs.schema',
}
_ROOMS = ('accounting', 'catalogue', 'error', 'runtime', 'sensitivity', 'workloads')

__all__ = ['__version__', *_HOMES, *_ROOMS]


def __getattr__(name: str) -> Any:
  if name in _HOMES:
    return getattr(importlib.import_module(_HOMES[name]), name)
  if name in _ROOMS:
    return importlib.import_module(f'{__name__}.{name}')
  raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
  return sorted(__all__)
