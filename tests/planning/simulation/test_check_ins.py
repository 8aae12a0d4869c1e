"""Check-ins against a loop over candidates, and against the rates of devices."""

import itertools

import hypothesis
import numpy as np
import pytest
import scipy.stats
from hypothesis import strategies as st

from fl_dpftrl.planning.simulation import availabilities, check_ins, populations
from fl_dpftrl.support.kernels import check_in_loops as loops

HOUR = 3600.0


def slow_candidates(points, gaps, needed, now, end, ceilings, sizes, first, members, rates, pace):
  """The same candidates, each found by going through the groups."""
  found, time, total = [], now, float(np.cumsum(sizes * ceilings)[-1])
  for point, gap, need in zip(points, gaps, needed):
    time += gap / total
    if time >= end:
      return found, end
    ends = itertools.accumulate(sizes * ceilings)
    group, above = next((g, e) for g, e in enumerate(ends) if e > point * total)
    place = min(int((above - point * total) / ceilings[group]), sizes[group] - 1)
    device = members[first[group] + place]
    least = need * ceilings[group] * (HOUR / float(rates[device]) + pace)
    if least < 1.0:
      found.append((device, time, least))
  return found, time


@hypothesis.given(
  sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
  shares=st.lists(st.floats(0.3, 1.0), min_size=6, max_size=6),
  draws=st.sampled_from([1, 40, 700]),
  period=st.sampled_from([5.0, 500.0, 1e6]),
  pace=st.sampled_from([0.0, 600.0]),
  seed=st.integers(0, 2**32),
)
def test_candidates_are_those_of_the_loop(sizes, shares, draws, period, pace, seed):
  rng, sizes = np.random.default_rng(seed), np.array(sizes)
  first = np.cumsum(sizes) - sizes
  members = rng.permutation(int(sizes.sum())).astype(np.int32)
  rates = rng.uniform(0.5, 3.0, members.size).astype(np.float32)
  ceilings = np.array(shares[: sizes.size]) / (HOUR / 3.0 + pace)
  points, needed = rng.random((2, draws))
  gaps = rng.standard_exponential(draws)
  arguments = points, gaps, needed, 7.0, 7.0 + period, ceilings, sizes, first, members, rates, pace
  devices, times, least, end = loops.candidates(*arguments)
  expected, expected_end = slow_candidates(*arguments)
  assert end == pytest.approx(expected_end, rel=1e-12)
  assert devices.tolist() == [device for device, *_ in expected]
  np.testing.assert_allclose(times, [time for _, time, _ in expected], rtol=1e-12)
  np.testing.assert_allclose(least, [least for *_, least in expected], rtol=1e-12)


@hypothesis.given(
  devices=st.lists(st.integers(0, 9), max_size=30),
  taken=st.sets(st.integers(0, 9)),
  most=st.integers(1, 12),
  seed=st.integers(0, 2**32),
)
def test_the_first_that_are_present_are_chosen_once(devices, taken, most, seed):
  rng = np.random.default_rng(seed)
  least, presence = rng.random((2, len(devices)))
  is_chosen = np.isin(np.arange(10), list(taken))
  expected = {}
  for i, device in enumerate(devices):
    if least[i] < presence[i] and device not in taken and len(expected) < most:
      expected.setdefault(device, float(i))
  columns = np.array(devices, np.int64), np.arange(len(devices)) + 0.0, least, presence
  chosen, times = loops.choose(*columns, is_chosen, most)
  assert dict(zip(chosen.tolist(), times.tolist())) == expected
  assert times.tolist() == sorted(expected.values())
  assert set(np.flatnonzero(is_chosen)) == taken | expected.keys()


class Half:
  """Presence of half of the devices at half their rate, which ceilings do not know."""

  def presence(self, num_devices, seed, habits):
    self.cells = np.arange(num_devices) % 3
    return self

  def ceiling(self, start, end):
    return np.ones(3)

  def at(self, devices, times):
    return np.where(devices % 2, 0.5, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize('wanted, period', [(1, 400.0), (12, 5.0)])
@pytest.mark.parametrize('pace', [0.0, 900.0])
def test_each_device_checks_in_at_its_own_rate(wanted, period, pace):
  """A Poisson process of each device, whether the wanted devices or the time end a period."""
  people = populations.SimulatedPopulation(num_devices=40, seed=3, availability=Half())
  sampler, rng = check_ins.CheckIns(people, 0), np.random.default_rng(5)
  counts, clock = np.zeros(40), 0.0
  for _ in range(12_000):
    devices, times, until = sampler.choose(clock, clock + period, wanted, pace, rng)
    assert (np.diff(times, prepend=clock) >= 0.0).all() and times.max(initial=0.0) <= until
    assert until == (times[-1] if devices.size == wanted else clock + period)
    sampler.records['is_chosen'][devices] = False
    counts[devices] += 1
    clock = until
  rates = np.where(np.arange(40) % 2, 0.5, 1.0) / (HOUR / people.rates + pace)
  expected = clock * rates
  assert 0.001 < scipy.stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), 40) < 0.999
  assert counts.sum() == pytest.approx(expected.sum(), abs=4 * np.sqrt(expected.sum()))


def test_nobody_checks_in_where_nobody_can():
  never = availabilities.Nightly(charging_nights=0.0, daytime=0.0)
  people = populations.SimulatedPopulation(num_devices=40, availability=never)
  sampler, rng = check_ins.CheckIns(people, 0), np.random.default_rng(5)
  for hour in range(48):
    devices, _, until = sampler.choose(HOUR * hour, HOUR * (hour + 1), 5, 0.0, rng)
    assert not devices.size and until > HOUR * hour
