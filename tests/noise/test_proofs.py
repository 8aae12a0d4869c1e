"""Proofs, for all inputs, of what normals, sums and their counters rely on.

Each proof is of the numbers and constants that the package itself uses, and fails where one of them
is too small. docs/decisions/proofs.md says what is left to assumption.
"""

import fractions
import itertools
import types

import numpy as np
import pytest
import z3

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.noise import exact, normals, recurrence
from fl_dpftrl.run import sums
from fl_dpftrl.support.kernels import normal_loops, sum_loops

_EXACTLY = fractions.Fraction
_HALF, _UNIT = _EXACTLY(1, 2), _EXACTLY(1, 2**53)  # of rounding in float64, relative
_WIDTH_ERROR = _EXACTLY(1, 10**65)  # of `exact.widths`
_WORD = _EXACTLY(1, 2**54)


def _layers():
  """Yields of each layer its true width, its width in float64, and its limit of u."""
  tables = normals._tables()
  for layer in range(exact.LAYERS):
    assert tables.widths[layer] == -tables.widths[layer + exact.LAYERS]
    assert tables.limits[layer] == tables.limits[layer + exact.LAYERS]
    true, stored = _EXACTLY(exact.widths()[layer]), _EXACTLY(float(tables.widths[layer]))
    yield true, stored, int(tables.limits[layer])


def _error(true, stored, most_u, scaled=None, scale=None):
  """Largest error of fl(fl(u)·fl(width·s)) for (u + f)·2⁻⁵⁴·x·s, over s, with f in [0, 1).

  Without a scale: for every s, as long as nothing is below the normal numbers of float64.
  """
  of_u = 1 if most_u > 2**53 else 0  # float64 holds whole numbers up to 2⁵³.
  if scale is None:
    scaled, product_error = stored * (1 + _UNIT), stored * _UNIT + abs(stored - true * _WORD)
  else:
    scaled, scale = _EXACTLY(float(scaled)), _EXACTLY(scale)
    product_error = abs(scaled - stored * scale) + abs(stored - true * _WORD) * scale
    product_error, scaled = product_error / scale, scaled / scale
  product_error += _WIDTH_ERROR * _WORD
  further_bits = (true + _WIDTH_ERROR) * _WORD
  rounded_product = _UNIT * most_u * scaled
  return of_u * scaled + rounded_product + product_error * most_u + further_bits


def _is_proved(margin, error, smallest_scale):
  """Whether error·s is below margin·s less the rounding of ½ − margin·s, for every s from one on.

  Below it nothing comes near the half between two integers.
  """
  return smallest_scale * (margin - error) >= _UNIT / 4


@pytest.mark.parametrize(
  'margin, is_right', [(normals._ERROR, True), (0.3 * normals._ERROR, False)]
)
def test_the_first_pass_is_right_for_all_words_at_every_scale(margin, is_right):
  """An integer that `rounded` is sure of is the nearest, for all 2⁶⁴ words."""
  proved = [
    _is_proved(
      _EXACTLY(margin), _error(true, stored, limit), _EXACTLY(49, 100) * 2**54 / (limit * true)
    )
    for true, stored, limit in _layers()
    if limit
  ]
  assert len(proved) >= exact.LAYERS - 1
  assert all(proved) is is_right


@pytest.mark.parametrize('widths, is_right', [(normal_loops.ERROR_IN_WIDTHS, True), (0.5, False)])
def test_later_passes_are_right_for_all_words_at_every_scale(widths, is_right):
  """`offset` adds up exact products; what it rounds is small, or near ½. Over width · scale."""
  proved, tables = [], normals._tables()
  for (true, stored, _), rest in zip(_layers(), map(_EXACTLY, map(float, tables.rests))):
    assert abs(rest) <= _UNIT * stored
    of_width = abs(stored + rest - true * _WORD) + _WIDTH_ERROR * _WORD
    lost = 2 * _UNIT * (1 + _UNIT)  # of width · scale, with the rest
    of_lost = 4 * _UNIT * lost  # The rest's product, the sum, and a sum and a product by `whole`.
    of_sums = 2 * _UNIT * (2**28 + 16)  # `low` and what `high` leaves are below 2²⁸, all else 16.
    error = of_sums + 2**54 * (of_lost + of_width / stored)
    further_bits = (true + _WIDTH_ERROR) * _WORD / stored / 2
    # A margin is rounded, too.
    proved.append(error + further_bits <= _EXACTLY(widths) * (1 - 4 * _UNIT))
  assert all(proved) is is_right
  # Next to ½, where the scale is small: three sums of at most 1, and the rounding of ½ less margin.
  assert _EXACTLY(normal_loops.ROUNDING) >= 4 * _UNIT


@pytest.mark.parametrize('scale', [2.0**-20, 1.37, 2.0**34, 1.9 * 2.0**40, 1.3 * 2.0**46])
def test_offsets_are_as_exact_as_the_proof_says(scale):
  """Of fractions at random, at the ends, and next to boundaries between integers."""
  tables, generator = normals._tables(), np.random.default_rng(3)
  for place in (*range(0, 1024, 37), 0, 511, 512, 1023):
    width, rest = float(tables.widths[place]), float(tables.rests[place])
    true = _EXACTLY(exact.widths()[place % 512]) * _WORD * (-1) ** (place >= 512)
    chosen = [0, 1, (1 << 27) - 1, 1 << 27, (1 << 54) - 1, *generator.integers(0, 1 << 54, 20)]
    near = (generator.integers(0, 1 << 30, 20) + 0.5) / (scale * abs(width))
    chosen += [int(whole) for whole in near if whole < 1 << 54]
    for whole in map(int, chosen):
      nearest = float(np.rint(whole * width * scale))
      off = _EXACTLY(normal_loops.offset(whole, width, rest, scale, nearest))
      error = abs(off - ((whole + _HALF) * true * _EXACTLY(scale) - _EXACTLY(nearest)))
      assert error <= _EXACTLY(2**-24) * abs(_EXACTLY(width) * _EXACTLY(scale)) + _EXACTLY(2**-51)


def _scales(strategy):
  """Yields the scales of a strategy's normals, of its rows and of those that are read again."""
  num_rounds = strategy.max_rounds or 3000
  for row in itertools.islice(lattice.rows(strategy, num_rounds), num_rounds):
    yield abs(row.spread) * 2.0**lattice.BITS


@pytest.mark.parametrize('name', files.names())
def test_the_first_pass_is_right_at_the_scales_of_included_strategies(name):
  """With the numbers themselves in place of bounds of their roundings."""
  scales = sorted(set(_scales(dpftrl.load_strategy(name))))
  for scale in {scales[0], scales[len(scales) // 2], scales[-1]}:
    scaled, most = normals._tables().widths * scale, 0.5 - normals._ERROR * scale
    for (true, stored, limit), width in zip(_layers(), scaled):
      assert _error(true, stored, limit, width, scale) * _EXACTLY(scale) + _EXACTLY(most) <= _HALF


def test_the_tail_has_room_for_60_units_of_the_logarithm():
  """x₁ − ln(u)/x₁ for u from 2⁻²⁰ on; of the logarithm, 2 units are checked when noise is made."""
  tail = _EXACTLY(normals._tables().tail)
  largest = _EXACTLY(139, 10)  # above 20 ln 2
  unit_in_last_place = _EXACTLY(8, 2**52)  # of a logarithm below 16
  of_logarithm = 60 * unit_in_last_place / tail
  of_further_bits = _EXACTLY(2**20, 2**64) / tail
  of_x1 = abs(tail - _EXACTLY(exact.widths()[1])) * (1 + largest / tail**2) + _WIDTH_ERROR
  of_roundings = 4 * _UNIT * (largest / tail + 8)
  error = of_logarithm + of_further_bits + of_x1 + of_roundings
  assert error < _EXACTLY(normal_loops.TAIL_ERROR)
  assert error + 60 * unit_in_last_place / tail > _EXACTLY(normal_loops.TAIL_ERROR)  # not for 120


@pytest.mark.slow
@pytest.mark.parametrize('scale', [1.37, 2.0**34, 1.9 * 2.0**40])
def test_the_compiled_loop_agrees_at_the_edges_of_every_layer(scale):
  """Next to limits, powers of 2, and boundaries between integers: none that is sure is wrong."""
  chosen = []
  for layer, (true, _, limit) in enumerate(_layers()):
    edges = {1 << bit for bit in range(54)} | {0, limit, 2**54}
    largest = int(scale * float(true))
    for whole in {0, 1, 2, largest // 3, largest // 2, largest - 2, largest - 1, largest}:
      edges.add(int((whole + _HALF) / (true * _EXACTLY(scale)) * 2**54))
    near = {u + off for u in edges for off in (-2, -1, 0, 1, 2)}
    chosen += [(u, layer) for u in near if 0 <= u < 2**54]
  words = np.array([u << 10 | layer for u, layer in chosen], np.uint64)
  out, unsure = np.empty(words.size), np.empty(words.size + 1, np.int64)
  tables, most = normals._tables(), 0.5 - normals._ERROR * scale
  count = normal_loops.rounded(words, tables.limits, tables.widths * scale, most, out, unsure)
  sure = np.setdiff1d(np.arange(words.size), unsure[:count])
  assert words.size > 100_000 and sure.size > 0.2 * words.size
  for place in sure.tolist():
    u, layer = chosen[place]
    assert exact.rounded(layer, exact.Fraction(u << 128, 182), scale) == out[place]
    assert exact.rounded(layer, exact.Fraction((u + 1 << 128) - 1, 182), scale) == out[place]


def _counter(row, chunk, use, block):
  return z3.Concat(row, chunk, use, block)


def test_no_two_normals_share_a_counter():
  """Words of a chunk, and blocks of further bits of each normal, attempt and place."""
  names = ('row', 'chunk', 'place', 'attempt', 'number')
  sizes = (48, 32, 32, 32, 32)
  first, second = ([z3.BitVec(f'{n}{i}', s) for n, s in zip(names, sizes)] for i in (1, 2))

  def words(row, chunk, place, attempt, number):
    return _counter(row, chunk, z3.BitVecVal(normals._WORDS, 16), number), z3.ULT(
      number, normals.CHUNK // 2
    )

  def further(row, chunk, place, attempt, number):
    block = (place * normals._ATTEMPTS + attempt) * normals._BLOCKS + number
    ranges = (place, normals.CHUNK), (attempt, normals._ATTEMPTS), (number, normals._BLOCKS)
    used = z3.BitVecVal(normals._FURTHER, 16)
    return _counter(row, chunk, used, block), z3.And(*(z3.ULT(x, most) for x, most in ranges))

  def can_collide(one, other, compared):
    (counter, is_valid), (its_counter, its_valid) = one(*first), other(*second)
    solver = z3.Solver()
    solver.add(is_valid, its_valid, counter == its_counter)
    solver.add(z3.Or(*(a != b for a, b in zip(first, second) if a.decl().name()[:-1] in compared)))
    return solver.check() == z3.sat

  assert not can_collide(words, words, ('row', 'chunk', 'number'))
  assert not can_collide(further, further, names)
  assert not can_collide(words, further, names)
  # A proof that finds no collision finds one where there is one: without the attempt in the block.
  assert can_collide(lambda *x: further(*x[:3], z3.BitVecVal(0, 32), x[4]), further, names)


def _shown(counters, bits):
  bits[: len(counters)] = counters


def test_counters_are_those_of_the_proof():
  places = np.array([0, 1, 77, normals.CHUNK - 1, normals.CHUNK, 3 * normals.CHUNK + 5])
  normal, size = normals.Normals(bytes(32)), 3 * normals.CHUNK - 7
  normal._blocks = types.SimpleNamespace(update=bytes, update_into=_shown)  # Not enciphered.
  for row, chunk in ((0, 0), (2**48 - 1, 2**32 - 4), (12345, 0xFFFF)):
    further = normal._further(row, chunk, places, normals._ATTEMPTS)
    words = normal._words(row, chunk, size)
    made = []
    for place, counters in zip(places.tolist(), further):
      for attempt in (0, 1, 255):
        within = (place % normals.CHUNK * normals._ATTEMPTS + attempt) * normals._BLOCKS
        made.append((counters[attempt], place // normals.CHUNK, normals._FURTHER, within))
    for block in (0, 1, 4321, normals.CHUNK // 2 - 1, normals.CHUNK // 2, size // 2 - 1):
      chunks, within = divmod(block, normals.CHUNK // 2)
      made.append((words[2 * block : 2 * block + 2], chunks, normals._WORDS, within))
    for counter, chunks, use, within in made:
      fields = (row, 6), (chunk + chunks, 4), (use, 2), (within, 4)
      assert counter.tobytes() == b''.join(value.to_bytes(size, 'big') for value, size in fields)


def _rounded_to_24_bits(product, shift):
  """Rounds a product of up to 48 bits to multiples of 2^shift, ties to even."""
  half, unit = z3.BitVecVal(1, 64) << (shift - 1), z3.BitVecVal(1, 64) << shift
  rest, floor = product & (unit - 1), product & ~(unit - 1)
  goes_up = z3.Or(z3.UGT(rest, half), z3.And(rest == half, floor & unit != 0))
  return z3.If(goes_up, floor + unit, floor)


@pytest.mark.parametrize('slack, is_right', [(24, True), (25, False)])
def test_rounding_of_a_product_lengthens_it_by_at_most_one_part_in_two_to_the_24(slack, is_right):
  """For every product of two float32 significands, 48 bits; truncation lengthens nothing."""
  found = []
  for shift in (23, 24):  # of products with 47 and 48 bits
    product, solver = z3.BitVec('product', 64), z3.Solver()
    bits = 24 + shift
    solver.add(z3.UGE(product, 1 << bits - 1), z3.ULT(product, 1 << bits))
    result = _rounded_to_24_bits(product, z3.BitVecVal(shift, 64))
    # result·2^slack > product·(2^slack + 1), of 73 bits
    wide = lambda x: z3.ZeroExt(64, x)
    solver.add(z3.UGT(wide(result) << slack, (wide(product) << slack) + wide(product)))
    found.append(solver.check() == z3.sat)
  assert any(found) is not is_right


def test_products_of_float32_are_truncated_and_not_too_long():
  """Edge significands with every exponent that matters, through the compiled loop itself."""
  edges = [
    1.0,
    1 + 2.0**-23,
    1 + 2.0**-22,
    1.5 - 2.0**-23,
    1.5,
    1.5 + 2.0**-23,
    2 - 2.0**-22,
    2 - 2.0**-23,
  ]
  edges += [1.25, 1.75, 4 / 3, 5 / 3, 1.1, 1.9]
  values = np.array([np.float32(m * 2.0**e) for m in edges for e in range(-12, 24)], np.float32)
  factors = [np.float32(m * 2.0**e) for m in edges for e in (-20, -3, 0, 5)]
  for factor in factors:
    row = values[np.float64(values) * np.float64(factor) < 2.0**24][None]
    total, squares = np.zeros(row.size, np.int64), np.zeros(1)
    sum_loops.add(row, 0, row.size, 0, np.array([np.float64(factor)]), total, squares)
    product = [_EXACTLY(float(x)) * _EXACTLY(float(factor)) for x in row[0]]
    for whole, true in zip(total.tolist(), product):
      assert whole <= true * (1 + _EXACTLY(1, 2**24)) and whole > true - 1 - true / 2**24
    assert squares[0] == float(sum(k * k for k in total.tolist()))


@pytest.mark.slow
def test_a_subnormal_scale_is_never_rounded_up():
  """Of all 2²³ subnormals of float32, and 7 places between each and the next."""
  least = 2.0**-149
  largest = np.float32(3e38)
  offsets = (0.0, 2.0**-29, 0.25, 0.5, 0.5 + 2.0**-23, 0.75, 1 - 2.0**-23)
  for offset in offsets:
    for start in range(0, 1 << 23, 1 << 20):
      scales = (np.arange(start, start + (1 << 20), dtype=np.float64) + offset) * least
      factors = scales.astype(np.float32)
      too_large = factors > scales
      factors[too_large] -= sum_loops._LEAST
      assert (factors <= scales).all()
      assert (scales < sum_loops._LEAST_NORMAL).all()
  # The loop does the same: the product with the largest number shows its factor.
  scales = (np.array([1.5, 2.75, 8388606.6]) * least).tolist()
  for scale in scales:
    total, squares = np.zeros(1, np.int64), np.zeros(1)
    sum_loops.add(np.full((1, 1), largest), 0, 1, 0, np.array([scale]), total, squares)
    assert total[0] <= float(largest) * scale


def test_the_margin_of_the_clip_norm_covers_all_roundings():
  """(1 − 2⁻²²)(1 + 2⁻²⁴)²(1 + 2⁻³⁶) < 1 with the margin of sums, and not with half of it."""
  grown = (1 + _EXACTLY(1, 2**24)) ** 2 * (1 + _EXACTLY(1, 2**36))
  margin = _EXACTLY(sums._MARGIN)
  assert margin * grown < 1 - _EXACTLY(1, 2**24)
  assert (1 + margin) / 2 * grown > 1


def test_rows_of_steps_have_the_scales_of_the_proof():
  strategy = dpftrl.load_strategy('blt-b400')
  steps = recurrence.Recurrence(strategy, 20)
  assert {steps.step(t).scale for t in range(20)} <= set(itertools.islice(_scales(strategy), 20))
