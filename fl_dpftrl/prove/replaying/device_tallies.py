"""Tallies: counts of logs, and the exposure of each device to the noise of several runs.

Rounds are numbered across the runs, each run following on the one before. X = CᵀC is then block
diagonal, with a block for each run, divided by the squared ratio of its noise multiplier to the
largest one.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import id_spellings
from fl_dpftrl.mechanisms.sensitivities import kinds as sensitivity_base
from fl_dpftrl.mechanisms.sensitivities import patterns
from fl_dpftrl.participation.counts import participation_counts

_BINS_PER_OCTAVE = 256
_LOWEST_OCTAVE = -64


class Exposure:
  """The squared sensitivity of devices, in units of `claims.noise_unit`.

  The squared sensitivity over the squared noise multiplier is 2ρ of zCDP. The ρ of independent runs
  add up.

  Attributes:
    claims: those of the runs.
    starts: number of rounds before each run, int64.
  """

  def __init__(self, run_claims: Sequence[run_claim.Claim], num_rounds: Sequence[int]):
    self.claims = run_claims
    self.starts = np.cumsum([0, *num_rounds[:-1]])
    self._entries = [_entries(c, n) for c, n in zip(run_claims, num_rounds, strict=True)]
    multipliers = np.array([claim.noise_multiplier for claim in run_claims])
    # Without noise there is no unit; squares are then those of each run.
    self._unit = run_claim.noise_unit(run_claims)
    weights = self._unit / multipliers if self._unit else np.ones(len(run_claims))
    self._weights = weights**2

  def squares(self, rounds: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns each square, and if all are exact or else upper bounds; rounds go by device."""
    return patterns.pattern_squares(self._of_rounds, rounds, sizes)

  def places(self, rounds: np.ndarray) -> np.ndarray:
    """Returns the place of the run that each round is of."""
    return np.searchsorted(self.starts, rounds, side='right') - 1

  def _of_rounds(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns entries of X, each times the weight of its run."""
    if len(self._entries) == 1:
      return self._entries[0](rows, columns)
    rows, columns = np.broadcast_arrays(rows, columns)
    row_runs, column_runs = self.places(rows), self.places(columns)
    total = np.zeros(rows.shape)
    for i, (start, entries) in enumerate(zip(self.starts, self._entries)):
      which = (row_runs == i) & (column_runs == i)
      total[which] = self._weights[i] * entries(rows[which] - start, columns[which] - start)
    return total


class Exposed(NamedTuple):
  """A device with the square of its sensitivity over all runs, and its rounds."""

  square: float
  device_id: str | int
  rounds: tuple[int, ...]

  @property
  def order(self) -> tuple:
    """Sort key: the largest square first, then by device."""
    return (-self.square, self.device_id)


@dataclasses.dataclass(frozen=True, eq=False)
class Tally:
  """Counts of several logs of one population.

  Attributes:
    exposures: number of devices, by squared sensitivity, in bins whose upper ends
      `upper_squares` gives.
    most_exposed: a few devices, the most exposed first.
    exact: whether all squares are exact; otherwise they are upper bounds.
    most_rounds: most participations of a device in all logs together.
    violators: devices that did not keep to a declared schema in at least one run; 0 where there
      were only counts of devices, which do not tell.
    wrong_rounds: number of participations that violate one, by round, numbered across runs: those
      that are too soon after the one before, or one too many in its run.
    wrong_square: largest squared sensitivity of the violators, over all runs.
    mergeable: ids that would be one with another if case and leading zeros did not count.
    id_bytes: length of the shortest and of the longest id; None without text.
    repeated: the first device, in the order of ids, that is in several logs; None without any.
    devices: tally of devices, where this one is of the units that own them; None where it is not.
    people: tally without the canaries of the runs; None where there are none.
  """

  logs: tuple[participation_counts.DeviceCounts, ...]
  num_devices: int = 0
  exposures: participation_counts.Counts = participation_counts.Counts()
  most_exposed: tuple[Exposed, ...] = ()
  exact: bool = True
  most_rounds: int = 0
  violators: int = 0
  wrong_rounds: participation_counts.Counts = participation_counts.Counts()
  wrong_square: float = 0.0
  mergeable: int = 0
  id_bytes: tuple[int, int] | None = None
  repeated: str | int | None = None
  devices: 'Tally | None' = None
  people: 'Tally | None' = None

  @classmethod
  def of_rows(
    cls,
    numbers: np.ndarray,
    rounds: np.ndarray,
    name: Callable[[int], str | int],
    exposure: Exposure,
    num_exposed: int,
  ) -> 'Tally':
    """Counts the rows of whole devices, which have numbers in the order of their ids."""
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    sizes = np.diff(starts, append=rounds.size)
    owners = np.repeat(np.arange(starts.size), sizes)
    squares, exact = exposure.squares(rounds, sizes)
    places, logs = exposure.places(rounds), []
    several = np.flatnonzero((np.diff(owners) == 0) & (np.diff(places) > 0))
    for place, start in enumerate(exposure.starts):
      rows = np.flatnonzero(places == place)
      device_id = lambda row, rows=rows: name(int(numbers[rows[row]]))
      logs.append(
        participation_counts.DeviceCounts.of_rows(rounds[rows] - start, owners[rows], device_id)
      )
    exposed = [
      Exposed(
        float(squares[i]),
        name(int(numbers[starts[i]])),
        tuple(rounds[starts[i] : starts[i] + sizes[i]].tolist()),
      )
      for i in _largest(squares, num_exposed)
    ]
    bins = participation_counts.Counts.of(bins_of(squares))
    wrong = _wrong(rounds, owners, places, exposure)
    violators = np.unique(owners[wrong])
    return cls(
      tuple(logs),
      starts.size,
      bins,
      tuple(exposed),
      exact,
      int(np.bincount(owners[np.append(True, np.diff(owners) + np.diff(rounds) != 0)]).max()),
      violators.size,
      participation_counts.Counts.of(rounds[wrong]),
      float(squares[violators].max(initial=0.0)),
      repeated=name(int(numbers[several[0]])) if several.size else None,
    )

  @property
  def ids(self) -> id_spellings.IdSummary | None:
    """Facts of all ids; None for counts of text, which hold none."""
    if self.id_bytes is not None:
      return id_spellings.IdSummary(True, *self.id_bytes, self.mergeable)
    ends = [abs(i) for counts in self.logs if counts.id_range for i in counts.id_range]
    return id_spellings.IdSummary(False, None, len(str(max(ends))), 0) if ends else None

  def plus(self, other: 'Tally', num_exposed: int) -> 'Tally':
    """Adds two tallies of different devices, keeping num_exposed devices."""
    repeated: list[Any] = [t.repeated for t in (self, other) if t.repeated is not None]
    exposed = sorted((*self.most_exposed, *other.most_exposed), key=lambda e: e.order)
    return Tally(
      tuple(a + b for a, b in zip(self.logs, other.logs, strict=True)),
      self.num_devices + other.num_devices,
      self.exposures + other.exposures,
      tuple(exposed[:num_exposed]),
      self.exact and other.exact,
      max(self.most_rounds, other.most_rounds),
      self.violators + other.violators,
      self.wrong_rounds + other.wrong_rounds,
      max(self.wrong_square, other.wrong_square),
      repeated=min(repeated) if repeated else None,
    )


def bins_of(squares: np.ndarray) -> np.ndarray:
  """Returns the bin of each square, at least 0."""
  bins = np.ceil((np.log2(squares) - _LOWEST_OCTAVE) * _BINS_PER_OCTAVE)
  return np.maximum(bins, 0.0).astype(np.int64)


def upper_squares(bins: np.ndarray) -> np.ndarray:
  """Returns the largest square of each bin, less than 0.28 % above the others in it."""
  return np.exp2(bins / _BINS_PER_OCTAVE + _LOWEST_OCTAVE)


def _largest(values: np.ndarray, most: int) -> np.ndarray:
  """Returns indices of the largest values, descending; ties by first index."""
  least = np.partition(values, -most)[-most] if values.size > most else -np.inf
  places = np.flatnonzero(values >= least)
  return places[np.argsort(-values[places], kind='stable')][:most]


def _wrong(
  rounds: np.ndarray, owners: np.ndarray, places: np.ndarray, exposure: Exposure
) -> np.ndarray:
  """Returns which participations violate what was declared of their run."""
  wrong = np.zeros(rounds.size, bool)
  for place, claim in enumerate(exposure.claims):
    rows = np.flatnonzero((places == place) & (claim.participation is not None))
    is_first = np.diff(owners[rows], prepend=-1) != 0
    starts = np.maximum.accumulate(np.where(is_first, np.arange(rows.size), 0))
    in_run = rounds[rows] - exposure.starts[place]
    wrong[rows] = claim.answers.wrong(claim.strategy, in_run, starts)
  return wrong


def _entries(claim: run_claim.Claim, num_rounds: int) -> sensitivity_base.Entries:
  """Returns entries of X; over all rows for ever where the run is without an end."""
  if claim.answers.num_rounds is not None:
    return claim.strategy.gram_entries(num_rounds)
  gram = claim.strategy.endless_gram().tabulated(num_rounds)
  return lambda rows, columns: gram.entries(np.minimum(rows, columns), np.maximum(rows, columns))
