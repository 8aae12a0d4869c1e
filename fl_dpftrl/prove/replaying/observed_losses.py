"""Losses of the devices of logs, as they were observed, and their distribution.

Sensitivities are in units of the largest noise multiplier of the runs. Over independent runs the
squares of sensitivity over noise multiplier add up.
"""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.prove.replaying import device_tallies, run_facts
from fl_dpftrl.support.files import json_files

Spend = Callable[..., guarantees.Guarantee]  # from a sensitivity

QUANTILES = (0.5, 0.9, 0.99, 0.999)
_BARS = 32
_LISTED = 10


def largest(tally: device_tallies.Tally, group_size: int) -> sensitivities.Sensitivity:
  """Returns the largest sensitivity of a group, a sum by the triangle inequality."""
  value = sum(math.sqrt(exposed.square) for exposed in tally.most_exposed[:group_size])
  is_exact = tally.exact and group_size == 1
  kind = sensitivities.EXACT if is_exact else sensitivities.UPPER_BOUND
  return sensitivities.Sensitivity(value, kind)


def quantiles(tally: device_tallies.Tally, shares: Sequence[float]) -> list[tuple[float, float]]:
  """Returns a squared sensitivity that covers each share of the devices, at most 0.28 % more."""
  counts = tally.exposures.counts.cumsum()
  places = [int((counts < share * counts[-1]).sum()) for share in shares]
  upper = device_tallies.upper_squares(tally.exposures.values[places])
  return list(zip(shares, np.minimum(upper, tally.most_exposed[0].square).tolist()))


def _histogram(
  tally: device_tallies.Tally, loss: Callable[[float], float]
) -> list[tuple[float, float, int]]:
  """Histogram of devices by privacy loss: lower end, upper end and count."""
  bins = tally.exposures
  losses = [loss(square) for square in device_tallies.upper_squares(bins.values).tolist()]
  low, width = losses[0], (losses[-1] - losses[0]) / _BARS
  bars = [0] * _BARS
  for value, count in zip(losses, bins.counts.tolist()):
    place = int((value - low) / width + 1e-9) if width else 0  # At an edge on any processor.
    bars[min(place, _BARS - 1)] += count
  return [(low + i * width, low + (i + 1) * width, count) for i, count in enumerate(bars)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerDevice:
  """Privacy loss of the devices that took part, each alone.

  Attributes:
    most_exposed: the device with the largest loss.
    quantiles: shares, 0 to 1, of the devices, with the largest loss within each.
    rho_histogram: lower end, upper end and number of devices by ρ; empty without noise.
  """

  most_exposed: str | int
  quantiles: tuple[tuple[float, guarantees.Guarantee], ...]
  rho_histogram: tuple[tuple[float, float, int], ...] = ()

  @classmethod
  def of(cls, tally: device_tallies.Tally, spend: Spend) -> 'PerDevice':
    """Returns the losses of the devices of a tally, of which there is one at least."""
    spent = lambda square: spend(sensitivities.Sensitivity.from_square(square, tally.exact))
    shares = tuple((share, spent(square)) for share, square in quantiles(tally, QUANTILES))
    has_noise = shares[0][1].noise_multiplier > 0.0
    bars = _histogram(tally, lambda square: spent(square).rho) if has_noise else []
    return cls(
      most_exposed=tally.most_exposed[0].device_id, quantiles=shares, rho_histogram=tuple(bars)
    )

  def to_json(self) -> json_files.Object:
    """Returns the fields; no histogram without noise."""
    result: json_files.Object = {
      'most_exposed': self.most_exposed,
      'quantiles': [{'share': share, **loss.to_json()} for share, loss in self.quantiles],
    }
    if self.rho_histogram:
      result['rho_histogram'] = [list(bar) for bar in self.rho_histogram]
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Violations:
  """Consequences of a declared schema that some devices did not keep to.

  Attributes:
    num_devices: devices that did not keep to it in at least one run.
    num_rounds: rounds in which a device took part too soon, or too often.
    first_rounds: the first few of these, each as its `run`, from 1, and `round`.
    largest: the largest privacy loss of any one of these devices, from its actual rounds.
    num_complied: devices that kept to it.
    complied: privacy loss of any one device that kept to it, by the declared schema.
  """

  num_devices: int
  num_rounds: int
  first_rounds: tuple[dict[str, int], ...]
  largest: guarantees.Guarantee
  num_complied: int
  complied: guarantees.Guarantee

  MEANING = (
    'each device alone that kept to the declared schema has the loss of that schema, whatever'
    ' other devices did: its own updates entered only such rounds as the schema allows. Whether a'
    ' device is among those that kept to it is itself not protected. It must not depend on the'
    " device's data, nor, through released models, on anything computed from it"
  )

  @classmethod
  def of(
    cls,
    tally: device_tallies.Tally,
    runs: Sequence[run_facts.RunFacts],
    spend: Spend,
    disjoint: bool,
  ) -> 'Violations':
    """Returns the consequences of a tally with violators."""
    firsts = [0, *itertools.accumulate(run.num_rounds for run in runs)]
    people, places = tally.people or tally, []
    for number in tally.wrong_rounds.values[:_LISTED].tolist():
      run = bisect.bisect_right(firsts, number)
      shown = number - firsts[run - 1] + runs[run - 1].layout.first_round
      places.append({'run': run, 'round': shown})
    loss = spend(sensitivities.Sensitivity.from_square(tally.wrong_square, tally.exact))
    every = [run.claim for run in runs], [run.claim.answers for run in runs]
    terms = guarantees.Terms(loss.deltas, loss.adjacency)
    return cls(
      num_devices=tally.violators,
      num_rounds=tally.wrong_rounds.values.size,
      first_rounds=tuple(places),
      largest=loss,
      num_complied=people.num_devices - people.violators,
      complied=run_claim.compose(*every, terms, disjoint=disjoint),
    )

  def to_json(self, *, void: bool) -> json_files.Object:
    """Returns the counts and both losses; and what they mean, unless all is void."""
    losses = {'largest': self.largest.to_json(), 'complied': self.complied.to_json()}
    shown = {**vars(self), 'first_rounds': list(self.first_rounds), **losses}
    return shown if void else {**shown, 'meaning': self.MEANING}
