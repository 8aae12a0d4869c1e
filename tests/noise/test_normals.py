"""Exactly rounded normals, compared with mpmath and with exact probabilities."""

import functools

import mpmath
import numpy as np
import pytest
import scipy.stats
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fl_dpftrl.noise import exact, normals
from fl_dpftrl.support.kernels import normal_loops as loops

_SEED = bytes(range(32))


def _made(row=0, chunk=0, scale=1.0, size=normals.CHUNK):
  out = np.empty(size, np.int64)
  normals.Normals(_SEED).fill(row, chunk, scale, out)
  return out


def _bits(row, chunk, use, block, size):
  """The same bits by AES of each counter on its own."""
  encryptor = Cipher(algorithms.AES256(_SEED), modes.ECB()).encryptor()
  start = (row << 80) + (chunk << 48) + (use << 32) + block
  return b''.join(encryptor.update((start + i).to_bytes(16, 'big')) for i in range(-(-size // 16)))[
    :size
  ]


def _words(row, chunk):
  return np.frombuffer(_bits(row, chunk, 0, 0, 8 * normals.CHUNK), '<u8')


@functools.cache
def _widths():
  """Widths of the layers, from the first one and the area of the tail, by mpmath."""
  with mpmath.workprec(600):
    x = mpmath.mpf(str(exact.widths()[1]))
    area = x * _height(x) + mpmath.sqrt(mpmath.pi / 2) * mpmath.erfc(x / mpmath.sqrt(2))
    made = [area / _height(x), x]
    for _ in range(exact.LAYERS - 2):
      x = mpmath.sqrt(-2 * mpmath.log(area / x + _height(x)))
      made.append(x)
    return [*made, mpmath.mpf(0)]


def _height(x):
  return mpmath.exp(-x * x / 2)


def _true(word, place, row=0, chunk=0):
  """ξ from its word and further bits of each fraction; which attempt; whether in the tail."""
  word, x, in_tail = int(word), _widths(), False
  with mpmath.workprec(600):
    for attempt in range(50):

      def fraction(bits, length, number, block=(place * 256 + attempt) * 4):
        more = int.from_bytes(_bits(row, chunk, 1, block + number, 16), 'big')
        return ((bits << 128 | more) + mpmath.mpf(0.5)) / mpmath.mpf(2) ** (length + 128)

      text = _bits(row, chunk, 1, (place * 256 + attempt) * 4, 16)
      first, second = (int.from_bytes(part, 'little') for part in (text[:8], text[8:]))
      layer, sign = word % 512, -1 if word >> 9 & 1 else 1
      u, v = fraction(word >> 10, 54, 1), fraction(first, 64, 2)
      if not in_tail and u * x[layer] < x[layer + 1]:
        return sign * u * x[layer], attempt, False
      in_tail |= layer == 0
      if in_tail:
        beyond = -mpmath.log(v) / x[1]
        if -2 * mpmath.log(fraction(second, 64, 3)) > beyond**2:
          return sign * (x[1] + beyond), attempt, True
      else:
        low, high = _height(x[layer]), _height(x[layer + 1])
        if low + v * (high - low) < _height(u * x[layer]):
          return sign * u * x[layer], attempt, False
        word = second
  raise AssertionError(place)


def _nearest(value, scale):
  with mpmath.workprec(600):
    return int(mpmath.nint(value * mpmath.mpf(scale)))


def _outer(words):
  """Places of words that are not sure to be below the density at all heights."""
  return np.flatnonzero((words >> 10) >= normals._tables().limits[words & 1023].astype(np.uint64))


def test_layers_and_tail_have_one_area():
  with mpmath.workprec(600):
    x = _widths()
    area = x[0] * _height(x[1])
    for i in range(1, exact.LAYERS):
      top = x[i] * (_height(x[i + 1]) - _height(x[i]))
      assert abs(top / area - 1) < 1e-70
    for mine, other in zip(exact.widths(), x):
      assert abs(mpmath.mpf(str(mine)) - other) < 1e-68
    for layer in range(exact.LAYERS):
      assert exact.inner(layer) == int(mpmath.floor(x[layer + 1] / x[layer] * mpmath.mpf(2) ** 192))


@pytest.mark.parametrize('log_scale', [-2, 0, 10, 34, 44, 52, 58])
def test_each_integer_is_the_nearest(log_scale):
  """Small scales are decided in float64, 2⁵⁸ by further bits."""
  scale = 1.37 * 2.0 ** (log_scale - 1)
  words = _words(3, 2)
  outer = _outer(words)
  assert 80 < outer.size < 160
  made = _made(3, 2, scale)
  for place in [*range(40), *outer[:40].tolist()]:
    assert int(made[place]) == _nearest(_true(words[place], place, 3, 2)[0], scale), place


@pytest.mark.slow
def test_tails_and_later_attempts_are_right():
  tails = attempts = 0
  for chunk in range(12):
    words, made = _words(9, chunk), _made(9, chunk, 2.0**34)
    for place in _outer(words).tolist():
      value, attempt, in_tail = _true(words[place], place, 9, chunk)
      assert int(made[place]) == _nearest(value, 2.0**34)
      tails, attempts = tails + in_tail, attempts + (attempt > 0)
  assert tails > 10 and attempts > 300


def test_a_point_of_the_tail_is_taken_where_the_density_is_above_it():
  """−2 ln v > a², a = −ln(u)/x₁, for u from 2⁻²⁰ to 1; half of the points are close to the edge."""
  generator, x, taken = np.random.default_rng(5), float(exact.widths()[1]), 0
  for u in 2.0 ** generator.uniform(-20.0, 0.0, 200):
    a = -np.log(u) / x
    for v in np.exp(-0.5 * a * a * np.array([generator.uniform(0.0, 3.0), 0.99, 1.01])):
      bits = [exact.Fraction(int(part * 2.0**53) << 139, 192) for part in (u, v)]
      assert exact.is_in_tail(*bits) == (-2.0 * np.log(v) > a * a)
      taken += exact.is_in_tail(*bits)
  assert 300 < taken < 500


@pytest.mark.parametrize('log_scale', [1, 34, 40])
def test_float64_and_bits_agree(log_scale, monkeypatch):
  """Normals that float64 decides are those that `exact` makes of the same bits."""
  scale = 2.0**log_scale
  made = _made(4, 1, scale, 2 * normals.CHUNK)
  monkeypatch.setattr(normals, '_FLOAT_ATTEMPTS', 0)
  source = normals.Normals(_SEED)
  for chunk in range(2):
    words = _words(4, 1 + chunk)
    for place in np.union1d(_outer(words), np.arange(0, normals.CHUNK, 40)).tolist():
      expected = source._exact(4, 1 + chunk, place, int(words[place]), scale)
      assert made[chunk * normals.CHUNK + place] == expected
  np.testing.assert_array_equal(_made(4, 1, scale, 2 * normals.CHUNK), made)


def test_the_largest_scale_of_float64_has_the_integers_of_int64():
  out = np.empty(normals.CHUNK)
  normals.Normals(_SEED).fill(0, 0, 2.0**47, out)
  np.testing.assert_array_equal(out, _made(scale=2.0**47))
  with pytest.raises(ValueError, match='at most 2'):
    normals.Normals(_SEED).fill(0, 0, 2.0**48, out)


def test_undecided_normals_are_left_to_bits(monkeypatch):
  """Exactly those near a boundary between integers, and those whose words are at a limit."""
  asked, own = [], normals.Normals._exact
  monkeypatch.setattr(normals.Normals, '_exact', lambda *a: asked.append(a[3]) or own(*a))
  words = _words(0, 0)
  made = _made(scale=2.0**46)
  # 1.02 · 2⁻⁵⁴ xᵢ · 2⁴⁶ of them, and those that float64 puts beyond their boundary.
  assert 100 < len(asked) < 200
  for place in range(0, normals.CHUNK, 100):
    value = _true(words[place], place)[0] * mpmath.mpf(2) ** 46
    if abs(value - mpmath.floor(value) - 0.5) < 2.0**-10 * _widths()[int(words[place]) % 512]:
      assert place in asked
  for place in asked[:30]:
    assert int(made[place]) == _nearest(_true(words[place], place)[0], 2.0**46)


@pytest.mark.parametrize('sign', [0, 1 << 9])
@pytest.mark.parametrize('layer', [0, 1, 300, 510, 511])
def test_words_at_the_ends_are_right(layer, sign, monkeypatch):
  limit = int(normals._tables().limits[layer])
  fractions = {0, 1, limit - 1, limit, limit + 1, 2**54 - 1, 2**54 - 2}
  fractions = [u for u in sorted(fractions) if 0 <= u < 2**54]
  words = np.array([u << 10 | sign | layer for u in fractions], np.uint64)
  monkeypatch.setattr(normals.Normals, '_words', lambda *_: words)
  for log_scale in (-3, 10, 34):
    made = _made(scale=2.0**log_scale, size=words.size)
    for place, word in enumerate(words.tolist()):
      assert int(made[place]) == _nearest(_true(word, place)[0], 2.0**log_scale)


def test_further_bits_decide_where_the_first_do_not():
  # ½·x₁·scale is ½ but for the rounding of the scale; u is between ½ − 2⁻⁵⁴ and ½.
  x, scale = exact.widths()[1], float(1 / exact.widths()[1])
  off = (exact.decimal.Decimal(scale) * x - 1) / 2
  assert exact.rounded(1, exact.Fraction((1 << 181) - 1, 182), scale) == (1 if off > 0 else 0)
  for undecided in (lambda u: exact.rounded(1, u, scale), lambda u: exact.is_inner(7, u)):
    with pytest.raises(RuntimeError, match='180 bits'):
      undecided(exact.Fraction(0, 0))
  with pytest.raises(RuntimeError, match='180 bits'):
    exact.is_in_tail(exact.Fraction(0, 192), exact.Fraction(1, 192))
  inner = exact.inner(7) >> 138 << 128
  assert exact.is_inner(7, exact.Fraction(inner, 182)) is True
  assert exact.is_inner(7, exact.Fraction(inner | (1 << 128) - 1, 182)) is False


def test_no_counter_is_used_twice(monkeypatch):
  """Of AES, over words, attempts and further bits of neighbouring chunks."""
  seen, own = [], normals.Normals._further

  def further(self, row, chunk, at, attempts):
    places = [(row, chunk + int(i) // normals.CHUNK, int(i) % normals.CHUNK) for i in at]
    seen.extend((*place, attempt) for place in places for attempt in range(attempts))
    return own(self, row, chunk, at, attempts)

  monkeypatch.setattr(normals.Normals, '_further', further)
  _made(2, 5, 2.0**34, 3 * normals.CHUNK)
  assert len(seen) == len(set(seen)) > 300
  source = normals.Normals(_SEED)
  last = (1 << 48) - 1, (1 << 32) - 1, normals.CHUNK - 1, 255
  for row, chunk, place, attempt in [*seen[::25], last]:
    block = (place * 256 + attempt) * 4
    expected = np.frombuffer(_bits(row, chunk, 1, block, 16), '<u8')
    there = own(source, row, chunk, np.array([place]), attempt + 1)
    np.testing.assert_array_equal(there[0, attempt], expected)
  assert (normals.CHUNK * 256 - 1) * 4 + 3 < 1 << 32


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
  """By extended precision, whose own error is 2⁻¹¹ of the bound; the worst one by mpmath."""
  if np.finfo(np.longdouble).nmant < 63:
    pytest.skip('needs extended precision')
  largest, where = 0.0, None
  x = np.array([np.longdouble(str(each)) for each in exact.widths()[:-1]]) * 2.0**-54
  for chunk in range(num_chunks):
    words = _words(7, chunk)
    layers, u = words & np.uint64(511), (words >> np.uint64(10)).astype(np.int64)
    value = u * normals._tables().widths[layers]
    error = 16.0 * x[layers]
    off = np.abs(value - (u.astype(np.longdouble) + 0.5) * x[layers]) / error
    if off.max() > largest:
      largest, where = float(off.max()), (int(words[off.argmax()]), float(value[off.argmax()]))
  assert 0.1 < largest < 0.6
  word, value = where
  with mpmath.workprec(600):
    for u in (word >> 10, (word >> 10) + 1):
      true = u * _widths()[word % 512] / mpmath.mpf(2) ** 54
      assert abs(value - true) < 0.6 * 2.0**-50 * _widths()[word % 512] < 0.6 * normals._ERROR


def test_tails_in_float64_are_within_their_bound():
  """Against mpmath, for further bits of zeros and of ones."""
  u = np.r_[2.0**-20, np.random.default_rng(1).random(300), 1 - 2.0**-53]
  tail = normals._tables().tail
  value = np.array([tail + -loops.functions(each)[0] / tail for each in u.tolist()])
  with mpmath.workprec(600):
    x = _widths()[1]
    for mine, fraction in zip(value.tolist(), u.tolist()):
      for further in (0, 2.0**-64):
        true = x - mpmath.log(mpmath.mpf(fraction) + further) / x
        assert abs(mine - true) < 0.4 * loops.TAIL_ERROR


def test_normals_depend_on_seed_row_and_place_alone():
  whole = _made(5, 3, 100.0, 3 * normals.CHUNK)
  parts = [_made(5, 3 + i, 100.0) for i in range(3)]
  np.testing.assert_array_equal(whole, np.concatenate(parts))
  np.testing.assert_array_equal(_made(5, 3, 100.0, 20_001), whole[:20_001])
  others = [_made(6, 3, 100.0), _made(5, 4, 100.0)]
  out = np.empty(normals.CHUNK, np.int64)
  normals.Normals(bytes(32)).fill(5, 3, 100.0, out)
  for i, each in enumerate([parts[0], *others, out]):
    for other in [parts[0], *others, out][:i]:
      assert abs(np.corrcoef(each, other)[0, 1]) < 0.04


def test_neighbours_are_independent_normals():
  made = _made(1, 0, 2.0**20, 16 * normals.CHUNK) / 2.0**20
  for moment in (1, 2, 3):
    for lag in (1, 2, normals.CHUNK):
      assert abs(np.corrcoef(made[:-lag] ** moment, made[lag:] ** moment)[0, 1]) < 0.012
  assert scipy.stats.kstest(made, 'norm').pvalue > 1e-3
  assert scipy.stats.kstest(made, scipy.stats.norm(0, 1.03).cdf).pvalue < 1e-3
  # Of the parts of the density: the tail, and what is below the narrowest layer.
  for low, high in ((3.852, np.inf), (2.0, 3.852), (0.0, 0.2)):
    inside = int(((np.abs(made) > low) & (np.abs(made) < high)).sum())
    chance = 2 * (scipy.stats.norm.sf(low) - scipy.stats.norm.sf(high))
    assert scipy.stats.binomtest(inside, made.size, chance).pvalue > 1e-3


@pytest.mark.parametrize('scale', [0.0, -1.0, float('nan'), 2.0**59, float('inf')])
def test_refuses_a_scale_out_of_range(scale):
  with pytest.raises(ValueError, match='scale must be above 0'):
    _made(scale=scale)


@pytest.mark.parametrize('seed', [b'short', 'x' * 32])
def test_refuses_wrong_seeds(seed):
  with pytest.raises(ValueError, match='seed must be 32 bytes') as caught:
    normals.Normals(seed)
  assert 'short' not in str(caught.value)


@pytest.mark.parametrize(('name', 'off'), [('log', [2.0**-50, 0]), ('exp', [0, 2.0**-50])])
def test_a_function_that_is_off_is_noticed(name, off, monkeypatch):
  own = loops.functions
  monkeypatch.setattr(loops, 'functions', lambda x: np.array(own(x)) * (1 + np.array(off)))
  normals.check_functions.cache_clear()
  with pytest.raises(RuntimeError, match=f'{name} is off by'):
    normals.check_functions()
  normals.check_functions.cache_clear()


def test_system_seeds_differ():
  assert normals.system_seed() != normals.system_seed()
  assert len(normals.system_seed()) == normals.SEED_BYTES
