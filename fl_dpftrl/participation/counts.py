"""Sparse counts of whole numbers, which can be added up piece by piece."""

import dataclasses

import numpy as np

_DENSE = 1 << 20


def _none() -> np.ndarray:
  return np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
  """Values that occurred, ascending, with their counts: int64, of one shape."""

  values: np.ndarray = dataclasses.field(default_factory=_none)
  counts: np.ndarray = dataclasses.field(default_factory=_none)

  @classmethod
  def of(cls, occurrences: np.ndarray) -> 'Counts':
    """Counts an array of whole numbers of at least 0."""
    if not occurrences.size:
      return cls()
    if occurrences.max() < _DENSE:
      counts = np.bincount(occurrences)
      values = np.flatnonzero(counts)
      return cls(values, counts[values])
    return cls(*np.unique(occurrences, return_counts=True))

  def __add__(self, other: 'Counts') -> 'Counts':
    values, places = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, places, np.concatenate([self.counts, other.counts]))
    return Counts(values, counts)

  @property
  def total(self) -> int:
    return int(self.counts.sum())

  def to_dict(self) -> dict[int, int]:
    return dict(zip(self.values.tolist(), self.counts.tolist()))
