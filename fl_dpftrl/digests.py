"""The one digest of a strategy: in logs, reports, states of noise, and rows."""

import hashlib
import json
from typing import Any

import numpy as np

from fl_dpftrl.families import base


def strategy_digest(strategy: base.Strategy) -> str:
  """SHA-256 of a strategy's family and parameters, in hexadecimal.

  It covers the family's name and, for each parameter by name, its name, shape and little-endian
  float64 values, so that it is the same for every file format. A parameter that is a strategy
  itself enters by its own digest.
  """
  digest = hashlib.sha256(strategy.family.encode())
  for name, value in sorted(strategy.parameters().items()):
    kind, content = _content(value)
    digest.update(json.dumps([name, kind]).encode())
    digest.update(content)
  return digest.hexdigest()


def _content(value: Any) -> tuple[Any, bytes]:
  """Returns a parameter's type, its shape or 'strategy', and its bytes."""
  if isinstance(value, base.Strategy):
    return 'strategy', bytes.fromhex(strategy_digest(value))
  array = np.asarray(value, dtype='<f8')
  return array.shape, array.tobytes()


def short_digest(content: bytes) -> int:
  """The first 63 bits of SHA-256, which fit into a tensor of int64."""
  return int.from_bytes(hashlib.sha256(content).digest()[:8], 'little') >> 1
