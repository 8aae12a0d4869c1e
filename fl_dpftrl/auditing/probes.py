"""Inputs that show how an aggregator bounds, sums and divides updates.

All devices of a cohort send the same update g, so that their sum stands out of
the noise. The response is the projection of the release on the direction of g,
over the number of devices and the clip norm: 1 for an update that was clipped.
Clipping of each tensor on its own answers √m to m tensors of equal norms.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from fl_dpftrl.auditing import result, subjects

_INSIDE = 0.9  # norm over clip norm of an update that must stay as it is
_FAR = 100.0
_PRECISION = 40.0  # devices per unit of noise
_LEAST_DEVICES, _MOST_DEVICES = 8, 512
_LEAST_ROUNDS = 2  # of each probe
_ROUNDING = 1e-3  # relative, for float32 and for slack that a clip may leave


class Probe(NamedTuple):
  """One input.

  Attributes:
    name: what it is, in words.
    direction: unit vector, shape [num_coordinates].
    norm: norm of the update over the clip norm.
    devices: number of devices that send it.
  """

  name: str
  direction: np.ndarray
  norm: float
  devices: int


class Response(NamedTuple):
  """Measured response to a probe.

  Attributes:
    probe: the input.
    value: projection per device over the clip norm; NaN if a release was not finite.
    deviation: standard deviation of value.
  """

  probe: Probe
  value: float
  deviation: float


def make(
  sizes: Sequence[int], *, noise_multiplier: float, clip_norm: float, largest_update: float
) -> list[Probe]:
  """Returns the probes of an update with tensors of these sizes."""
  devices = math.ceil(_PRECISION * noise_multiplier)
  devices = min(max(devices, _LEAST_DEVICES), _MOST_DEVICES)
  spread = _direction(sizes, range(len(sizes)))
  probes = [
    Probe('an update inside the clip norm', spread, _INSIDE, devices),
    Probe('half as many devices inside the clip norm', spread, _INSIDE, devices // 2),
    Probe('several tensors far beyond the clip norm', spread, _FAR, devices),
  ]
  if len(sizes) > 1:
    each = 0.999 * math.sqrt(len(sizes))
    probes.append(Probe('tensors each just inside the clip norm', spread, each, devices))
    chosen = {0, int(np.argmin(sizes)), len(sizes) - 1}
    probes += [
      Probe(f'tensor {number} alone far beyond', _direction(sizes, [number]), _FAR, devices)
      for number in sorted(chosen)
    ]
  norm = largest_update / clip_norm
  probes.append(Probe('the largest update', spread, norm, devices))
  return probes


def _direction(sizes: Sequence[int], chosen: Sequence[int]) -> np.ndarray:
  """Returns a unit vector with equal norms on the chosen tensors."""
  parts = [np.full(size, 0.0) for size in sizes]
  for number in chosen:
    parts[number][:] = 1.0 / math.sqrt(len(chosen) * sizes[number])
  return np.concatenate(parts)


def measure(
  subject: subjects.Subject, probes: Sequence[Probe], *, clip_norm: float, covariance: np.ndarray
) -> list[Response]:
  """Runs all probes, each in several successive rounds.

  Args:
    subject: the mechanism.
    probes: inputs.
    clip_norm: claimed clip norm.
    covariance: of the noise of one coordinate, in units of the clip norm, shape
      [num_rounds, num_rounds].

  Returns:
    A response for each probe, and one for all updates beyond the clip norm
    together, which is more precise.
  """
  num_rounds = len(covariance)
  runs = max(1, math.ceil(_LEAST_ROUNDS * len(probes) / num_rounds))
  slots = np.arange(runs * num_rounds) * len(probes) // (runs * num_rounds)
  slots = slots.reshape(runs, num_rounds)
  projections = np.empty((runs, num_rounds))
  with np.errstate(over='ignore'):
    updates = [np.asarray(probe.direction * probe.norm * clip_norm, np.float32) for probe in probes]
  for run in range(runs):
    chosen = slots[run]

    def cohort(t, chosen=chosen):
      return [updates[chosen[t]]] * probes[chosen[t]].devices

    released = subject.run(cohort, num_rounds)
    for t in range(num_rounds):
      probe = probes[chosen[t]]
      finite = np.isfinite(released[t]).all()
      scale = probe.devices * clip_norm
      projections[run, t] = probe.direction @ released[t] / scale if finite else np.nan

  def response(probe, weights):
    weights = weights / weights.sum()
    taken = np.where(weights > 0.0, projections, 0.0)
    variance = np.einsum('rs,st,rt->', weights, covariance, weights)
    deviation = math.sqrt(variance) / probe.devices
    return Response(probe, float((weights * taken).sum()), deviation)

  responses = [response(p, (slots == number) * 1.0) for number, p in enumerate(probes)]
  is_clipped = np.array([p.norm > _INSIDE and p.devices == probes[0].devices for p in probes])
  together = is_clipped[slots] & np.isfinite(projections)
  if together.any():
    pooled = probes[0]._replace(name='all updates beyond the clip norm', norm=math.nan)
    responses.append(response(pooled, together * 1.0))
  return responses


def lowest_response(responses: Sequence[Response], alpha: float) -> float:
  """Returns a lower bound on the largest response to any probe."""
  quantile = float(stats.norm.isf(alpha / len(responses)))
  bounds = [r.value - quantile * r.deviation for r in responses if math.isfinite(r.value)]
  return max([0.0, *bounds])


def checks(responses: Sequence[Response], alpha: float) -> list[result.Check]:
  """Returns the checks of clipping, small updates, the divisor and finite releases."""
  finite = [r for r in responses if math.isfinite(r.value)]
  bad = [r.probe.name for r in responses if not math.isfinite(r.value)]
  quantile = float(stats.norm.isf(alpha / (2 * len(responses))))
  margin = lambda r: _ROUNDING + quantile * r.deviation
  clipped = max(finite, key=lambda r: r.value - margin(r), default=None)
  inside = [r for r in responses if r.probe.norm == _INSIDE]
  kept = max(inside, key=lambda r: abs(r.value - _INSIDE) / margin(r))
  results = [
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
      where=clipped.probe.name if clipped else '',
      meaning='an update enters the sum with more than the clip norm',
    ),
    result.Check(
      name='small_updates',
      statistic=kept.value,
      lowest=_INSIDE - margin(kept),
      highest=_INSIDE + margin(kept),
      where=kept.probe.name,
      meaning='an update within the clip norm is changed, or the divisor is not the claimed one',
    ),
  ]
  many, few = inside[0], inside[1]
  deviation = math.hypot(many.deviation, few.deviation)
  limit = _ROUNDING + quantile * deviation
  results.append(
    result.Check(
      name='divisor_fixed',
      statistic=many.value - few.value,
      lowest=-limit,
      highest=limit,
      where=f'{many.probe.devices} and {few.probe.devices} devices',
      meaning='the weight of a device depends on how many others take part',
    )
  )
  return results
