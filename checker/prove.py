"""Proves the figures of a certificate: each ε at its δ, from C, the noise and who takes part when.

Usage: python prove.py FILE ..., each a certificate, or a folder of evidence that holds one. What
claims and statement of a folder say is compared with it. Exit status 0 if all is proved, else 4.

It shares no code with the library that makes certificates, and imports the standard library only.
No float enters a proof: numbers are whole multiples of 2^-P, and every step rounds so that δ comes
out larger. README.md beside this file has the facts that are used, with their proofs or sources.
"""

import functools
import hashlib
import itertools
import json
import math
import os
import struct
import sys
from fractions import Fraction

VERSION = 1
P = 1536
ONE = 1 << P
FARTHEST = 36  # Φ(−36) ≤ φ(36)/36 < 2^-938
MOST_STEPS = 1_500_000
MOST_BYTES = 1 << 24
LARGEST = 1 << 40
FAMILIES = dict(identity='', tree_online='', tree_full='num_rounds', banded_inverse='coefficients')
FAMILIES |= dict(banded_toeplitz='coefficients normalized_rounds', stamped='strategy block_rounds')
FAMILIES |= dict(blt='buffer_decay output_scale', banded='coefficients', lambda_cgd='decay')
# (1 + e^300) 2^132 values of 1.2e-299 each: at most 2^11 runs of 2^40 rows and coordinates
BEYOND = ONE >> 400
SLACK = 1 + Fraction(1, 10**12)  # of ε, as the library sums in float64
TERMS = ('adjacency', 'group_size', 'disjoint', 'num_coordinates')
SCHEMA = ('num_rounds', 'min_sep', 'max_participations', 'max_rows')
steps = [0]


class Refused(ValueError):
  """What is refused, and so not proved."""


def work(count):
  """Counts steps before they are taken; refuses what would take more than some seconds."""
  steps[0] += count
  if steps[0] > MOST_STEPS:
    raise Refused(f'it takes more than {MOST_STEPS:,} steps')


# --- What a certificate may hold


def exact(text, least=0):
  """The number that a string is: a float in hexadecimal, as float.hex writes it."""
  work(1)
  number = float.fromhex(text)
  if number.hex() != text or not least <= number <= 1 << 64:
    raise Refused(f'a float in hexadecimal is needed, from {least} to 2^64, got {text[:40]!r}')
  return Fraction(number)


def whole(number, least=1):
  """A whole number that is neither too small nor too large."""
  if type(number) is not int or not least <= number <= LARGEST:
    raise Refused(f'a whole number of at least {least} is needed, got {str(number)[:40]}')
  return number


def only(document, names):
  """Refuses an object with other names than these: they may change what is released."""
  if type(document) is not dict or set(document) - set(names.split()):
    raise Refused(f'only {names} are known, got {str(document)[:80]}')


def once(pairs):
  """A JSON object in which no name is given twice."""
  if len(dict(pairs)) < len(pairs):
    raise Refused('a name is given twice')
  return dict(pairs)


def load(*path):
  """The JSON of a file, of which no more than MOST_BYTES are read."""
  with open(os.path.join(*path), 'rb') as stream:
    work(len(content := stream.read(MOST_BYTES)) // 100)
  return json.loads(content, object_pairs_hook=once)


# --- Numbers in units of 2^-P; an interval is a pair (low, high) of them, at least 0


def up(number):
  """The least multiple of 2^-P that is not below a number; a float is one."""
  return math.ceil(number * ONE)


def times(x, y):
  """The product of two numbers of at least 0, rounded up."""
  return -(-x * y >> P)


def power(x, n):
  """A power of a number of at least 0, rounded up."""
  return times(power(times(x, x), n // 2), x if n % 2 else ONE) if n else ONE


def root(square):
  """The square root of a fraction, rounded up."""
  return math.isqrt(math.ceil(square * ONE**2)) + 1


def product(x, y):
  """The product of two intervals."""
  return x[0] * y[0] >> P, times(x[1], y[1])


def series(first, x, divisor):
  """first · (1 + x/d₁ + x²/(d₁ d₂) + …) for divisors that grow; once x/d is below ½, the last term
  bounds the rest.
  """
  term = total = first
  k = 0
  while term[1] > 1 or 2 * x[1] > divisor(k + 1) << P:
    k += 1
    low, high = product(term, x)
    term = low // divisor(k), -(-high // divisor(k))
    total = total[0] + term[0], total[1] + term[1]
  return total[0], total[1] + term[1]


def exp(x):
  """e^x of an interval."""
  return series((ONE, ONE), x, lambda k: k)


def half_area(x):
  """√(2π) (Φ(x) − ½) = e^(−x²/2) Σ x^(2k+1)/(2k+1)!! of a number of at least 0."""
  square = product((x, x), (x, x))
  low, high = series((x, x), square, lambda k: 2 * k + 1)
  least, most = exp((square[0] >> 1, -(-square[1] >> 1)))
  return (low << P) // most, -((-high << P) // least)


@functools.cache
def root_of_two_pi():
  """√(2π), as Φ(36) − ½ is between ½ − 2^-938 and ½."""
  low, high = half_area(FARTHEST << P)
  return 2 * low, 2 * high + (high >> 930)


def cumulative(x):
  """Φ of a number, of any sign."""
  size = min(abs(x), FARTHEST << P)
  (low, high), (least, most) = half_area(size), root_of_two_pi()
  low, high = (low << P) // most, -((-high << P) // least) if size == abs(x) else ONE >> 1
  low, high = (low, high) if x >= 0 else (-high, -low)
  return max((ONE >> 1) + low, 0), (ONE >> 1) + high


def largest_delta(epsilon, mu):
  """Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ), rounded up (Balle and Wang 2018, theorem 8)."""
  half = Fraction(mu, 2 * ONE)
  ratio = epsilon * ONE / mu
  subtracted = exp((max(up(epsilon) - 1, 0),) * 2)[0] * cumulative(-up(half + ratio))[0] >> P
  return cumulative(up(half - ratio))[1] - subtracted


# --- S²: the most that a device moves C x, squared, in units of 2^-2P


def column(strategy, n):
  """|cᵢ| of a Toeplitz C for i < n, rounded up."""
  if 'coefficients' in strategy:
    c = [up(exact(x, -LARGEST)) for x in strategy['coefficients']]
    if c[0] <= 0:
      raise Refused('C has no inverse')
    return reciprocal(c, n) if strategy['family'] == 'banded_inverse' else [abs(x) for x in c[:n]]
  theta, omega = buffers(strategy)
  work(n * len(theta))
  c = [ONE]
  while len(c) < n and any(omega):
    c.append(sum(omega))
    omega = [times(w, decay) for w, decay in zip(omega, theta)]
  return c


def buffers(strategy):
  """θ and ω of cᵢ = Σ ω θ^(i−1): of a BLT; λ and λ; none for the identity."""
  if 'decay' in strategy:
    strategy = {'buffer_decay': [strategy['decay']], 'output_scale': [strategy['decay']]}
  names = ('buffer_decay', 'output_scale')
  theta, omega = ([up(exact(x)) for x in strategy.get(name, ())] for name in names)
  if len(theta) != len(omega) or max(0, *theta, sum(omega)) > ONE:
    raise Refused('decays are from 0 to 1, and as many scales from 0 on add up to at most 1')
  return theta, omega


def reciprocal(a, n):
  """|cᵢ| of 1 / Σ aᵢ zⁱ for i < n, rounded up.

  What is computed is c̃ = c * (1 + r), with remainders r of at most ρ = a₀ 2^-P. So it is off by at
  most ρ Σ |c| ≤ 2 ρ Σ |c̃|.
  """
  work(n * len(a))
  c = []
  for t in range(n):
    earlier = sum(a[i] * c[t - i] for i in range(1, min(t + 1, len(a))))
    c.append((ONE * ONE * (not t) - earlier) // a[0])
    if abs(c[-1]) > ONE << 64:
      raise Refused('the column of C grows without end')
  error = 2 * a[0] * sum(map(abs, c)) // ONE**2 + 1
  return [abs(x) + error for x in c]


def closest(c, n, b, k):
  """‖Σ of columns 0, b, …, (k − 1) b‖² over the first 1, 2, … rows, up to n."""
  rows = min(n, (k - 1) * b + len(c))
  work(2 * rows)
  sums, squares = [], [0]
  for t in range(rows):
    last = c[t - k * b] if 0 <= t - k * b < len(c) else 0
    sums.append((c[t] if t < len(c) else 0) - last + (sums[t - b] if t >= b else 0))
    squares.append(squares[-1] + sums[t] ** 2)
  return squares


def shifted(c, sizes, b, k):
  """S² of blocks of one falling column, or of columns that share no row within a block.

  In a block the earliest, closest rounds are the worst, and leave the most room for later blocks.
  Only the counts in the blocks are open; a state is the count so far and the wait in the next.
  """
  if k > 1 and len(c) > b:  # Of a column that does not fall, the least falling one above it.
    c = [*itertools.accumulate(reversed(c), max)][::-1]
  if len(sizes) == 1:
    return closest(c, sizes[0], b, k)[-1]
  square = functools.cache(lambda count: closest(c, sizes[0], b, count))
  best = {(0, 0): 0}
  for size in sizes:
    work(4 * len(best) * min(k, -(-size // b)))
    previous, best = best, {}
    for (so_far, wait), value in previous.items():
      for count in range(k - so_far + 1):
        if count and wait + (count - 1) * b >= size:
          break
        total = value + (square(count)[: size - wait + 1][-1] if count else 0)
        state = so_far + count, max(0, wait + count * b - size)
        best[state] = max(best.get(state, 0), total)
  return max(best.values())


def apart(squares, b, k):
  """The most that k numbers at least b places apart add up to."""
  work(len(squares) * k // 2)
  best = [0] * (len(squares) + 1)
  for _ in range(k):
    fewer, best = best, [0]
    for t, square in enumerate(squares):
      best.append(max(best[t], fewer[max(0, t + 1 - b)] + square))
  return best[-1]


def squared_columns(strategy, size):
  """Squared norms of the columns of the first rows of a banded C, as they are or normalised."""
  work(4 * size)
  if strategy['family'] != 'banded':  # Norm 1, or less where the run ends early.
    made_for = whole(strategy['normalized_rounds'], size)
    sums = [*itertools.accumulate((x * x for x in column(strategy, made_for)), initial=0)]
    ends = [[min(len(sums) - 1, n - t) for n in (size, made_for)] for t in range(size)]
    return [-(-sums[end] * ONE**2 // sums[whole_end]) for end, whole_end in ends]
  squares = [[up(exact(x, -LARGEST)) ** 2 for x in row] for row in strategy['coefficients'][:size]]
  width = len(squares[0])
  if len(squares) < size or any(len(row) != width or not row[0] for row in squares):
    raise Refused('C has fewer rows, rows that differ in length, or no inverse')
  return [sum(squares[t + j][j] for j in range(min(width, size - t))) for t in range(size)]


def trees(sizes, b, k):
  """The largest Σ over nodes of complete binary trees of (participations in it)².

  An assignment of m rounds to nodes is (−value, c, −x): who enters with a wait of w ≤ x rounds
  leaves with a wait of max(c, w + m b − length). Of two with the same m, one may be worse in all.
  """

  def joined(left, right, bonus):
    (length, firsts), (other_length, seconds) = left, right
    sets = {}
    for i, j in ((i, j) for i in firsts for j in seconds if i + j <= k):
      work(3 * len(firsts[i]) * len(seconds[j]))
      for (value, c, x), (other, d, y) in itertools.product(firsts[i], seconds[j]):
        entering = max(x, y + i * b - length)
        leaving = max(d, c + j * b - other_length)
        if c <= -y and entering <= 0:
          total = value + other - bonus * (i + j) ** 2
          sets.setdefault(i + j, set()).add((total, leaving, entering))
    length += other_length
    return length, {m: best(sets[m], m * b - length) for m in sets}

  def best(sets, reach):
    kept = []
    for value, leaving, entering in sorted(sets):
      work(len(kept) // 4)
      if kept and kept[-1][0] == value and leaving <= 1 - kept[-1][2] + reach:
        kept[-1] = (value, kept[-1][1], min(entering, kept[-1][2]))  # They are one together.
      elif not any(c <= leaving and x <= entering for _, c, x in kept):
        kept.append((value, leaving, entering))
    return kept

  complete = [(1, {0: [(0, 0, 1 - b)], 1: [(-1, b - 1, 0)]})]
  for _ in range(sizes[0].bit_length() - 1):
    complete.append(joined(complete[-1], complete[-1], 1))
  forest = 0, {0: [(0, 0, 1 - b)]}
  for size, height in itertools.product(sizes, reversed(range(len(complete)))):
    forest = joined(forest, complete[height], 0) if size >> height & 1 else forest
  return max(-value for sets in forest[1].values() for value, *_ in sets) << 2 * P


def endless(theta, omega, b, k):
  """k X(0) + 2 Σ (k − m) X(m b), X(d) = Σ θ^(d−1) (ω + θ s), s = Σ ω ω / (1 − θ θ); X falls."""
  work(k * len(theta) + len(theta) ** 2)
  total = k * ONE
  for decay, scale in zip(theta, omega):
    s = sum(-(-scale * w * ONE // (ONE**2 - decay * t)) for w, t in zip(omega, theta))
    total += k * s
    at_lag = times(power(decay, b - 1), scale + times(decay, s))
    step = power(decay, b)
    for m in range(1, k):
      total += 2 * (k - m) * at_lag
      at_lag = times(at_lag, step)
  return total << P


def unstamped(strategy, block=None):
  """The strategy that blocks of rounds repeat, and how many; itself and None without blocks."""
  family = str(strategy['family'])
  if family not in FAMILIES or (block and family == 'stamped'):
    raise Refused(f'no proof is known for {family[:40]}')
  only(strategy, 'family ' + FAMILIES[family])
  if family == 'stamped':
    return unstamped(strategy['strategy'], whole(strategy['block_rounds']))
  return strategy, block


def squared_sensitivity(strategy, entry):
  """S² of one device that takes part in at most k of n rounds, at least b apart."""
  n, b, k = entry['num_rounds'], whole(entry['min_sep']), whole(entry['max_participations'])
  strategy, block = unstamped(strategy)
  family = strategy['family']
  made_for = strategy.get('normalized_rounds')
  coefficients = strategy.get('coefficients', [0])
  width = len(coefficients[0] if family == 'banded' else coefficients)
  if n is None and block:  # More blocks in a row without the device change nothing.
    n = k * (2 - (-b // block)) * block
  elif n is None and family in ('blt', 'lambda_cgd'):
    return endless(*buffers(strategy), b, k)
  elif n is None and made_for is None and family in ('identity', 'banded_toeplitz'):
    n = (k - 1) * b + width
  block = min(block or n, whole(n))
  k = min(k, -(-n // b))
  work(n // block)
  sizes = [block] * (n // block) + [n % block] * (n % block > 0)
  if family in ('tree_online', 'tree_full'):
    return trees([whole(strategy.get('num_rounds') or size, size) for size in sizes], b, k)
  if family != 'banded' and made_for is None:
    return shifted(column(strategy, block), sizes, b, k)
  if k > 1 and width > b:
    raise Refused(f'no proof is known for columns of {family} that overlap')
  squares = {size: squared_columns(strategy, size) for size in set(sizes)}
  return apart([x for size in sizes for x in squares[size]], b, k)


# --- The proof of a figure


def shift(certificate, figure):
  """μ of a figure, rounded up, and lines about what it rests on."""
  d = certificate['num_coordinates']
  squares, added, notes = [], [], set()
  for run, entry in zip(certificate['runs'], figure['participations'], strict=True):
    work(1000)
    only(run, 'strategy noise_multiplier')
    only(entry, f'kind squared {" ".join(SCHEMA)} noise_rows rounding')
    rows = entry['noise_rows']
    if entry['kind'] == 'min_sep':
      square = Fraction(squared_sensitivity(run['strategy'], entry), ONE**2)
      square *= whole(entry['max_rows']) ** 2
      if entry['num_rounds'] not in (None, rows):
        raise Refused('rows of noise are not the rounds')
    elif entry['kind'] in ('loss_budget', 'population'):
      square = exact(entry['squared'])
      notes.add(f'taken, not proved: {entry["kind"]} within a square of {float(square):.9g}')
    else:
      raise Refused(f'no proof is known for {str(entry["kind"])[:40]}')
    squares.append(square / exact(run['noise_multiplier']) ** 2)
    if d is not None:  # ‖B⁻¹‖ (1 + 2 f) / 2^34, of the library's theorem on whole numbers
      added.append(exact(entry['rounding']) ** 2 * whole(rows) * whole(d))
  together = max if certificate['disjoint'] is True else sum
  factor = {'zero_out': 1, 'replace_one': 2}[certificate['adjacency']]
  factor *= whole(certificate['group_size'])
  rounding = root(Fraction(together(added))) if added else 0
  if added:
    notes.add(f'taken, not proved: whole numbers add {float(Fraction(rounding, ONE)):.3g} to μ')
  return factor * root(together(squares)) + rounding, sorted(notes)


def proofs(certificate, figure):
  """Yields whether each ε of a figure is proved, and lines that say so."""
  only(figure, 'name participations guarantees')
  mu, notes = shift(certificate, figure)
  if not 2 < mu < 100 * ONE or not figure['guarantees']:
    raise Refused('μ is not between 0 and 100, or nothing is stated')
  for guarantee in figure['guarantees']:
    work(MOST_STEPS // 20)
    only(guarantee, 'epsilon delta')
    epsilon, delta = exact(guarantee['epsilon']), exact(guarantee['delta'])
    if epsilon > 300 or not Fraction(1, 10**100) <= delta < 1:
      raise Refused('ε is at most 300, and δ from 1e-100 to 1')
    value = largest_delta(epsilon * SLACK, mu) + BEYOND
    words = 'proved' if value <= up(delta) else 'not proved'
    words += f': ε = {float(epsilon)!r} at δ = {float(delta)!r}'
    yield value <= up(delta), f'{words}, as δ is at most {float(Fraction(value, ONE))!r}'
  yield True, ', '.join(f'{name} {certificate[name]}' for name in TERMS)
  yield from ((True, note) for note in notes)


def check(path):
  """Yields whether each figure of a file or folder is proved, and lines that say so."""
  is_folder = os.path.isdir(path)
  certificate = load(path, 'certificate.json') if is_folder else load(path)
  head = type(certificate) is dict and [certificate.get(x) for x in ('format', 'version')]
  if head != ['fl_dpftrl certificate', VERSION]:
    raise Refused(f'not a certificate of version {VERSION}')
  only(certificate, 'format version runs figures ' + ' '.join(TERMS))
  for figure in certificate['figures'] or [{'name': 'nothing is stated'}]:
    yield from attempt(f'{figure["name"]:.18}: ', proofs(certificate, figure))
  for name, *values in compared(path, certificate) if is_folder else ():
    if values[0] != values[1]:
      yield False, f'not proved: {name} differs from that of the certificate'


def attempt(prefix, lines):
  """Returns the lines of a check; one that says "not proved" where anything is wrong."""
  try:
    return [(holds, prefix + line) for holds, line in lines]
  except Exception as error:
    return [(False, f'{prefix}not proved: {type(error).__name__}: {error}')]


# --- A folder of evidence


def digest(strategy):
  """SHA-256 of family and parameters, of a certificate or a strategy file, as claims have it."""
  number = lambda x: float.fromhex(x) if isinstance(x, str) else float('nan' if x is None else x)
  result = hashlib.sha256(strategy['family'].encode())
  parameters = strategy.get('parameters', strategy)
  for name in sorted(parameters.keys() - {'family'}):
    kind, flat = [], [parameters[name]]
    while isinstance(flat[0], list):
      kind, flat = [*kind, len(flat[0])], [x for part in flat for x in part]
    if isinstance(flat[0], dict):
      kind, content = 'strategy', bytes.fromhex(digest(flat[0])['sha256'])
    else:
      content = struct.pack(f'<{len(flat)}d', *map(number, flat))
    result.update(json.dumps([name, kind]).encode() + content)
  return {'family': strategy['family'], 'sha256': result.hexdigest()}


def compared(folder, certificate):
  """Yields what a folder of evidence says, by its name, and what the certificate says of it."""
  statement = load(folder, 'statement.json')
  facts, claims = statement.get('runs', [statement]), []
  sizes = [run.get('num_coordinates') for run in facts]
  terms = {'disjoint': False, **statement, 'num_coordinates': None if None in sizes else max(sizes)}
  yield from ((f'{name} of statement.json', terms[name], certificate[name]) for name in TERMS)
  for place, run in enumerate(certificate['runs'], 1):
    if 'strategy' in run:
      prefix = f'run-{place}-' if len(facts) > 1 else ''
      claims.append(load(folder, f'{prefix}claim.json'))
      noise, file = claims[-1]['noise_multiplier'], load(folder, f'{prefix}strategy.json')
      yield f'noise_multiplier of {prefix}claim.json', float(noise).hex(), run['noise_multiplier']
      yield f'strategy of {prefix}claim.json', claims[-1]['strategy'], digest(run['strategy'])
      if '"npz"' not in json.dumps(file['parameters']):  # Else it is another file.
        yield f'{prefix}strategy.json', digest(file), digest(run['strategy'])
  num_runs = 0 if 'budgets' in statement.get('declared', ()) else len(facts)
  yield 'number of runs in statement.json', num_runs, len(claims)
  for figure in certificate['figures']:
    name, part = figure['name'], statement[figure['name']]
    curve = part.get('curve', [{'epsilon': part['epsilon'], 'delta': statement['delta']}])
    curve = [{x: float(y).hex() for x, y in point.items()} for point in curve]
    yield f'ε or δ of {name} in statement.json', curve, figure['guarantees']
    for entry, fact, claim in zip(figure['participations'], facts, claims):
      schema = {'max_rows': fact.get('units', {}).get('max_rows', 1), **fact}
      if name != 'worst_case':
        outer = claim['participation']
        schema = {'max_rows': outer.get('max_rows', 1), **outer.get('participation', outer)}
      is_budget = schema.get('kind') == 'loss_budget'
      stated = ['loss_budget', *[None] * 4] if is_budget else ['min_sep', *map(schema.get, SCHEMA)]
      yield f'participation of {name}', stated, [entry.get(x) for x in ('kind', *SCHEMA)]


def main(paths):
  """Checks files and folders; returns the exit status."""
  lines = [] if paths else [(False, 'name certificates or folders: python prove.py FILE ...')]
  for path in paths:
    steps[0] = 0
    lines += [(True, path), *attempt('  ', check(path))]
  for _, line in lines:
    print(''.join(x if x.isprintable() else ' ' for x in line)[:300])
  return 0 if all(holds for holds, _ in lines) else 4


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
