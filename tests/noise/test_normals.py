"""Exactly rounded normals, compared with mpmath and with exact probabilities."""

import mpmath
import numpy as np
import pytest
import scipy.stats
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fl_dpftrl.noise import exact, normals

_SEED = bytes(range(32))
_PAIRS = normals.CHUNK // 2


def _made(row=0, chunk=0, scale=1.0, size=normals.CHUNK, **kwargs):
  out = np.empty(size, np.int64)
  normals.Normals(_SEED, **kwargs).fill(row, chunk, scale, out)
  return out


def _bits(row, chunk, stream, use, block, size):
  """The same bits by AES of each counter on its own."""
  encryptor = Cipher(algorithms.AES256(_SEED), modes.ECB()).encryptor()
  start = (row << 80) + (chunk << 48) + (stream << 40) + (use << 32) + block
  return b''.join(encryptor.update((start + i).to_bytes(16, 'big')) for i in range(-(-size // 16)))[
    :size
  ]


def _true(words, place, row=0, chunk=0, stream=0):
  """ξ from the words and 128 further bits of each fraction, by mpmath."""
  pair = place % _PAIRS
  first, second = int(words[pair]), int(words[_PAIRS + pair])
  is_sine = place >= _PAIRS
  signs, fraction = second >> 62, (second & ((1 << 62) - 1)) ^ (1 << 61)
  further = _bits(row, chunk, stream, 1, pair << 19, 32)
  for block in (further[:16], further[16:]):
    first = first << 64 | int.from_bytes(block[:8], 'big')
    fraction = fraction << 64 | int.from_bytes(block[8:], 'big')
  with mpmath.workprec(600):
    radius = mpmath.sqrt(-2 * mpmath.log((first + mpmath.mpf(0.5)) / mpmath.mpf(2) ** 192))
    angle = mpmath.pi / 2 * (fraction + mpmath.mpf(0.5)) / mpmath.mpf(2) ** 190
    sign = -1 if signs >> (0 if is_sine else 1) & 1 else 1
    return sign * radius * (mpmath.sin if is_sine else mpmath.cos)(angle)


def _nearest(value, scale):
  with mpmath.workprec(600):
    return int(mpmath.nint(value * mpmath.mpf(scale)))


@pytest.mark.parametrize('extended', [True, False])
@pytest.mark.parametrize('log_scale', [-2, 0, 10, 34, 44, 52, 58])
def test_each_integer_is_the_nearest(log_scale, extended, monkeypatch):
  """Small scales are decided in float64, 2⁴⁴ in extended precision, 2⁵⁸ by further bits."""
  if not extended:
    monkeypatch.setattr(normals, 'has_extended', lambda: False)
  scale = 1.37 * 2.0 ** (log_scale - 1)
  words = np.frombuffer(_bits(3, 2, 1, 0, 0, 8 * normals.CHUNK), '<u8')
  # Each by further bits takes long; the first half of a chunk holds the cosines.
  places = [*range(60)] if log_scale >= 52 else [*range(40), *range(_PAIRS, _PAIRS + 40)]
  size = places[-1] + 1
  made = _made(3, 2, scale, size, stream=1)
  expected = [_nearest(_true(words, place, 3, 2, 1), scale) for place in places]
  assert [int(made[place]) for place in places] == expected


@pytest.mark.slow
def test_undecided_normals_are_decided_rightly(monkeypatch):
  """Of a row in float64, exactly those near a boundary go on, and come out right."""
  asked = []
  rounded = exact.rounded
  monkeypatch.setattr(normals, 'has_extended', lambda: False)
  monkeypatch.setattr(exact, 'rounded', lambda *a: asked.append(a) or rounded(*a))
  scale = 2.0**34
  made = _made(scale=scale, size=4 * normals.CHUNK)
  assert 5 <= len(asked) <= 100
  for chunk in range(4):
    words = np.frombuffer(_bits(0, chunk, 0, 0, 0, 8 * normals.CHUNK), '<u8')
    pairs = {(a[0].bits >> 64, a[2]) for a in asked}
    for place in range(normals.CHUNK):
      if (int(words[place % _PAIRS]), place >= _PAIRS) in pairs:
        value = _true(words, place, chunk=chunk)
        assert int(made[chunk * normals.CHUNK + place]) == _nearest(value, scale)


@pytest.mark.parametrize(
  ('first', 'second'),
  [
    (0, 0),
    (1, 1 << 61),
    ((1 << 64) - 1, 12345),
    ((1 << 64) - 1025, 1 << 63),
    ((1 << 24) - 1, (1 << 64) - 1),
    (1 << 24, (1 << 61) - 1),
    (1 << 63, 3 << 62),
  ],
)
@pytest.mark.parametrize('log_scale', [-3, 10, 34])
def test_bits_at_the_ends_are_undecided_or_right(first, second, log_scale):
  scale = 2.0**log_scale
  for dtype in (np.float64, np.longdouble):
    pairs = normals._Pairs(1, dtype)
    made, undecided = pairs.rounded(
      np.array([first], np.uint64), np.array([second], np.uint64), scale
    )
    for half in set(range(2)) - set(undecided.tolist()):
      words = np.zeros(normals.CHUNK, np.uint64)
      words[0], words[_PAIRS] = first, second
      assert int(made[half]) == _nearest(_true(words, half * _PAIRS), scale)
  assert first >= 1 << 24 or undecided.tolist() == [0, 1]


def test_bits_that_do_not_decide_are_said_to():
  """The middle of two integers lies in the interval of few bits, but not of more."""
  u, v = exact.Bits(1 << 63, 64), exact.Bits(1 << 61, 62)
  value = mpmath.sqrt(2 * mpmath.log(2)) * mpmath.cos(mpmath.pi / 4)
  half = float(0.5 / value)  # ξ · half is ½ but for the rounding of this quotient.
  near = [exact.rounded(exact.Bits(1 << 31, 32), exact.Bits(1 << 29, 30), s, half) for s in (0, 1)]
  assert near == [None, None]
  assert exact.rounded(exact.Bits(0, 64), v, False, 1.0) is None
  assert exact.rounded(u, v, False, 10.0) == round(10 * float(value))


@pytest.mark.parametrize('scale', [0.4, 1.0, 3.0])
def test_integers_have_their_exact_probabilities(scale):
  made = np.concatenate([_made(row, 0, scale, 8 * normals.CHUNK) for row in range(4)])
  assert _p_value(made, scale) > 1e-3
  assert _p_value(made, 1.02 * scale) < 1e-9
  assert _p_value(made, 0.98 * scale) < 1e-9


def _p_value(made, scale):
  """Of the frequencies of integers, if they are round(scale · ξ)."""
  largest = int(4 * scale)
  edges = np.concatenate([[-np.inf], np.arange(-largest, largest) + 0.5, [np.inf]])
  chances = np.diff(scipy.stats.norm.cdf(edges / scale))
  counts = np.histogram(made, np.clip(edges, -1e9, 1e9))[0]
  return scipy.stats.chisquare(counts, chances * made.size).pvalue


@pytest.mark.parametrize(
  'num_chunks', [60, pytest.param(620, marks=pytest.mark.thorough)], ids=['million', '10 million']
)
@pytest.mark.slow
def test_float64_is_within_its_bound(num_chunks):
  """By extended precision, whose own error is 2⁻¹¹ of the bound; the worst ones by mpmath."""
  if not normals.has_extended():
    pytest.skip('needs extended precision')
  ordinary, extended = (normals._Pairs(_PAIRS, dtype) for dtype in (np.float64, np.longdouble))
  largest, where = 0.0, None
  for chunk in range(num_chunks):
    words = np.frombuffer(_bits(7, chunk, 0, 0, 0, 8 * normals.CHUNK), '<u8')
    value, error = (
      each.astype(np.longdouble) for each in ordinary.approximate(*_halves(words), 1.0)
    )
    better, _ = extended.approximate(*_halves(words), 1.0)
    ratio = (np.abs(better - value) / error).ravel()
    if ratio.max() > largest:
      largest, where = float(ratio.max()), (words, int(ratio.argmax()))
  assert 0.02 < largest < 0.25  # E is four times the bound.
  words, place = where
  value, error = ordinary.approximate(*_halves(words), 1.0)
  off = abs(mpmath.mpf(float(value.ravel()[place])) - _true(words, place, 7, chunk))
  assert float(off) / float(error[place % _PAIRS]) < 0.25


@pytest.mark.slow
def test_float64_is_within_its_bound_far_out():
  """Where u is near 0 or 1, or φ near an end: against mpmath."""
  rng = np.random.default_rng(3)
  size = 300
  small = rng.integers(1, 2**24, size, np.uint64) << rng.integers(16, 40, size).astype(np.uint64)
  large = ~(rng.integers(1, 2**20, size, np.uint64) << rng.integers(0, 44, size).astype(np.uint64))
  ends = rng.integers(1, 2**20, size, np.uint64) << rng.integers(0, 40, size).astype(np.uint64)
  ends ^= rng.integers(0, 8, size, np.uint64) << np.uint64(61)
  words = np.zeros(normals.CHUNK, np.uint64)
  words[: 2 * size] = np.concatenate([small, large])
  words[_PAIRS : _PAIRS + 2 * size] = np.tile(ends, 2)
  words = words.reshape(2, -1)[:, : 2 * size].copy()
  values, error = normals._Pairs(2 * size, np.float64).approximate(*words, 1.0)
  words = np.pad(words, ((0, 0), (0, _PAIRS - 2 * size))).ravel()
  with mpmath.workprec(600):
    for pair in range(2 * size):
      for half in range(2):
        off = abs(mpmath.mpf(float(values[half, pair])) - _true(words, pair + half * _PAIRS))
        assert off < 0.25 * mpmath.mpf(float(error[pair]))


def _halves(words):
  return words[:_PAIRS], words[_PAIRS:]


def test_none_are_asked_for():
  assert _made(size=0).size == 0


def test_normals_depend_on_seed_stream_row_and_place_alone():
  whole = _made(5, 3, 100.0, 3 * normals.CHUNK)
  parts = [_made(5, 3 + i, 100.0) for i in range(3)]
  np.testing.assert_array_equal(whole, np.concatenate(parts))
  np.testing.assert_array_equal(_made(5, 3, 100.0, 20_001), whole[:20_001])
  others = [_made(6, 3, 100.0), _made(5, 4, 100.0), _made(5, 3, 100.0, stream=1)]
  out = np.empty(normals.CHUNK, np.int64)
  normals.Normals(bytes(32)).fill(5, 3, 100.0, out)
  for i, each in enumerate([parts[0], *others, out]):
    for other in [parts[0], *others, out][:i]:
      assert abs(np.corrcoef(each, other)[0, 1]) < 0.04


def test_pairs_are_independent_normals():
  """Signs, size and angle of a pair: covariance of values, of squares, and a uniform angle."""
  made = _made(1, 0, 2.0**20, 16 * normals.CHUNK).reshape(-1, 2, _PAIRS) / 2.0**20
  first, second = made[:, 0].ravel(), made[:, 1].ravel()
  for moment in (1, 2, 3):
    assert abs(np.corrcoef(first**moment, second**moment)[0, 1]) < 0.015
  turns = (np.arctan2(second, first) / (2 * np.pi)) % 1.0
  assert scipy.stats.kstest(turns, 'uniform').pvalue > 1e-3
  assert scipy.stats.kstest(first, 'norm').pvalue > 1e-3
  assert scipy.stats.kstest(first, 'norm', (0, 1.03)).pvalue < 1e-3


@pytest.mark.parametrize('scale', [0.0, -1.0, float('nan'), 2.0**59, float('inf')])
def test_refuses_a_scale_out_of_range(scale):
  with pytest.raises(ValueError, match='scale must be above 0'):
    _made(scale=scale)


@pytest.mark.parametrize(
  ('seed', 'stream', 'named'),
  [
    (b'short', 0, 'seed must be 32 bytes'),
    ('x' * 32, 0, 'seed'),
    (_SEED, 256, 'stream'),
    (_SEED, -1, 'stream'),
  ],
)
def test_refuses_wrong_seeds_and_streams(seed, stream, named):
  with pytest.raises(ValueError, match=named) as caught:
    normals.Normals(seed, stream=stream)
  assert 'short' not in str(caught.value)


def test_system_seeds_differ():
  assert normals.system_seed() != normals.system_seed()
  assert len(normals.system_seed()) == normals.SEED_BYTES


def test_a_logarithm_that_is_off_is_noticed(monkeypatch):
  log = np.log
  monkeypatch.setattr(np, 'log', lambda x: log(x) * (1 + 2.0**-50))
  normals.check_logarithm.cache_clear()
  with pytest.raises(RuntimeError, match='numpy.log of float64 is off by'):
    normals.check_logarithm()
  normals.check_logarithm.cache_clear()
