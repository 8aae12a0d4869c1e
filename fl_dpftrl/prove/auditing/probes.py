"""Inputs that show how an aggregator bounds, sums and divides updates.

All devices of a cohort send the same update g, so that their sum stands out of the noise. The
response is the projection of the release on the direction of g, over the number of devices and the
clip norm: 1 for an update that was clipped, 0 for one that was zeroed. Clipping of each tensor on
its own answers √m to m tensors of equal norms.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from fl_dpftrl.prove.auditing import result, subjects

_INSIDE = 0.9  # norm over clip norm of an update that must stay as it is
_FAR = 100.0
_LARGEST = 3e38  # norm of an update whose square overflows
_PRECISION = 40.0  # devices per unit of noise
_LEAST_DEVICES, _MOST_DEVICES = 8, 512
_LEAST_ROUNDS = 2  # of each probe
_ROUNDING = 1e-3  # relative, for float32 and for slack that a clip may leave


class Probe(NamedTuple):
  """One input, and the response to it once it is measured.

  Attributes:
    name: what it is, in words.
    direction: unit vector, shape [num_coordinates].
    norm: norm of the update over the clip norm.
    devices: number of devices that send it.
    value: projection per device over the clip norm; NaN if a release was not finite.
    deviation: standard deviation of value.
  """

  name: str
  direction: np.ndarray
  norm: float
  devices: int
  value: float = math.nan
  deviation: float = math.nan


def checks(
  subject: subjects.Subject, *, clip_norm: float, covariance: np.ndarray, alpha: float
) -> list[result.Check]:
  """Returns the checks of finite releases, clipping and small updates; covariance in clip norms."""
  responses = _measure(subject, clip_norm, covariance)
  finite = [r for r in responses if math.isfinite(r.value)]
  bad = [r.name for r in responses if not math.isfinite(r.value)]
  quantile = float(scipy.stats.norm.isf(alpha / (2 * len(responses))))
  margin = lambda r: _ROUNDING + quantile * r.deviation
  clipped = max(finite, key=lambda r: r.value - margin(r), default=None)
  inside = [r for r in responses if r.norm == _INSIDE]
  small = max(inside, key=lambda r: abs(r.value - _INSIDE) / margin(r))
  return [
    result.Check(
      name='releases_finite',
      statistic=float(len(bad)),
      highest=0.0,
      where=bad[0] if bad else '',
      meaning='an update turns the release into NaN or infinity, which shows the device',
    ),
    result.Check(
      name='clipping',
      statistic=clipped.value if clipped else math.nan,
      highest=1.0 + margin(clipped) if clipped else None,
      where=clipped.name if clipped else '',
      meaning='an update enters the sum with more than the clip norm',
    ),
    result.Check(
      name='small_updates',
      statistic=small.value,
      lowest=_INSIDE - margin(small),
      highest=_INSIDE + margin(small),
      where=small.name,
      meaning='an update within the clip norm is changed, or the divisor is not the claimed one,'
      ' such as a number of devices',
    ),
  ]


def _probes(sizes: Sequence[int], clip_norm: float, deviation: float) -> list[Probe]:
  """Returns the probes for tensors of some sizes and noise of a standard deviation."""
  devices = min(max(math.ceil(_PRECISION * deviation), _LEAST_DEVICES), _MOST_DEVICES)
  spread = _direction(sizes, range(len(sizes)))
  several = []
  if len(sizes) > 1:
    norm = 0.999 * math.sqrt(len(sizes))
    several = [Probe('tensors each just inside the clip norm', spread, norm, devices)] + [
      Probe(f'tensor {number} alone far beyond', _direction(sizes, [number]), _FAR, devices)
      for number in sorted({0, int(np.argmin(sizes)), len(sizes) - 1})
    ]
  return [
    Probe('an update inside the clip norm', spread, _INSIDE, devices),
    Probe('half as many devices inside the clip norm', spread, _INSIDE, devices // 2),
    Probe('several tensors far beyond the clip norm', spread, _FAR, devices),
    *several,
    Probe('the largest update', spread, _LARGEST / clip_norm, devices),
  ]


def _direction(sizes: Sequence[int], chosen: Iterable[int]) -> np.ndarray:
  """Returns a unit vector with equal norms on the chosen tensors."""
  parts = [np.full(size, (i in chosen) / math.sqrt(size)) for i, size in enumerate(sizes)]
  direction = np.concatenate(parts)
  return direction / np.linalg.norm(direction)


def _measure(subject: subjects.Subject, clip_norm: float, covariance: np.ndarray) -> list[Probe]:
  """Runs all probes for several rounds each; the clipped ones together are a response, too."""
  num_rounds = len(covariance)
  deviation = math.sqrt(covariance.diagonal().mean())
  probes = _probes(subject.sizes, clip_norm, deviation)
  updates = [np.float32(probe.direction * (probe.norm * clip_norm)) for probe in probes]
  runs = math.ceil(_LEAST_ROUNDS * len(probes) / num_rounds)
  slots = np.arange(runs * num_rounds) * len(probes) // (runs * num_rounds)
  slots = slots.reshape(runs, num_rounds)
  projections = np.full((runs, num_rounds), np.nan)
  for run, chosen in enumerate(slots):
    cohorts = [[updates[number]] * probes[number].devices for number in chosen]
    for t, row in enumerate(subject.run(cohorts.__getitem__, num_rounds)):
      probe = probes[chosen[t]]
      if np.isfinite(row).all():
        projections[run, t] = probe.direction @ row / (probe.devices * clip_norm)

  def response(probe, weights):
    weights = weights / weights.sum()
    value = np.where(weights > 0.0, weights * projections, 0.0).sum()
    variance = np.einsum('rs,st,rt->', weights, covariance, weights)
    return probe._replace(value=float(value), deviation=math.sqrt(variance) / probe.devices)

  responses = [response(p, (slots == number) * 1.0) for number, p in enumerate(probes)]
  is_clipped = np.array([p.norm > _INSIDE and p.devices == probes[0].devices for p in probes])
  together = is_clipped[slots] & np.isfinite(projections)
  if together.any():
    pooled = probes[0]._replace(name='all updates beyond the clip norm', norm=math.nan)
    responses.append(response(pooled, together * 1.0))
  return responses
