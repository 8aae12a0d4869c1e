"""Certificates that are wrong, or that would take for ever, are not proved; each for its reason."""

import fractions
import json
import math

import numpy as np
import pytest

from fl_dpftrl.participation.accounting import gaussian
from tests.checker import certified

prove = certified.prove


def smaller(square, noise=4.0):
  """Changes ε to that of a smaller S²."""
  epsilon = gaussian.epsilon(noise / math.sqrt(square), 1e-6)
  return lambda document: guarantee(epsilon=epsilon.hex())(document)


def guarantee(**values):
  return lambda document: certified.figure(document)['guarantees'][0].update(values)


def entry(**values):
  return lambda document: certified.figure(document)['participations'][0].update(values)


def run(**values):
  return lambda document: document['runs'][0].update(values)


def strategy(**values):
  return lambda document: document['runs'][0]['strategy'].update(values)


def top(**values):
  return lambda document: document.update(values)


def schema(**values):
  """Changes n with its rows of noise, b or k."""
  rows = {'noise_rows': values['num_rounds']} if values.get('num_rounds') else {}
  return entry(**values, **rows)


def second_run(**values):
  """Adds a run of a loss budget, and leaves ε as it is."""

  def change(document):
    document['runs'].append(json.loads(json.dumps(document['runs'][0])))
    for figure in document['figures']:
      figure['participations'].append({'kind': 'loss_budget', 'noise_rows': 9} | values)

  return change


def floats(*values):
  return [float(x).hex() for x in values]


def without(name):
  return lambda document: certified.figure(document)['participations'][0].pop(name)


def ragged(document):
  rows = document['runs'][0]['strategy']['coefficients']
  rows[7] = rows[7][:2]


def other_order(document):
  document['runs'].append({'strategy': {'family': 'identity'}, 'noise_multiplier': (9.0).hex()})
  document['runs'].reverse()


STAMPED = {'family': 'stamped', 'strategy': {'family': 'identity'}, 'block_rounds': 1}
GROWS = {'family': 'banded_inverse', 'coefficients': floats(1e-300, 1.0)}
# A family, a change of its certificate, and words of the answer, if not those for a small ε.
PLANTED = {
  # What the arithmetic of a guarantee gets wrong.
  'no factor 2 for replace one': ('blt', top(adjacency='replace_one')),
  'no factor for groups': ('blt', top(group_size=2)),
  'rows of a person uncounted': ('blt', entry(max_rows=2)),
  'k less by one': ('blt', schema(max_participations=6)),
  'b more by one': ('blt', schema(min_sep=5)),
  'n of a shorter run': ('blt', schema(num_rounds=200)),
  'columns taken as orthogonal': ('falling Toeplitz', smaller(5 * 1.328)),
  'only neighbours meet': ('falling Toeplitz', smaller(5 * 1.328 + 8 * 0.3)),
  'S² of a tree less by one': ('tree online', lambda d: less_by_one(d)),
  'ε less by 1e-10': ('blt', lambda d: scaled(d, 1 - 1e-10)),
  'δ less by 1e-9': ('blt', guarantee(delta=(1e-6 * (1 - 1e-9)).hex())),
  'ε of a run that ends': ('blt', entry(num_rounds=None)),
  'less noise': ('blt', run(noise_multiplier=(3.999999).hex())),
  'rounding left out': ('covered', entry(rounding=(1e-3).hex())),
  'more coordinates': ('covered', top(num_coordinates=10**12)),
  'the classic formula': ('blt', lambda d: classic(d)),
  'a decay off by 1e-8': ('blt', strategy(buffer_decay=floats(0.9 + 1e-8, 0.5))),
  'two runs with the ε of one': ('blt', second_run(squared=(0.1).hex())),
  'a budget that cancels another run': (
    'blt',
    second_run(squared=(-9.9).hex()),
    'a float in hexadecimal is needed, from 0',
  ),
  'runs that are said to be disjoint': (
    'blt',
    lambda d: (second_run(squared=(0.1).hex())(d), top(disjoint='yes')(d)),
  ),
  'the column of another strategy': ('blt', run(strategy={'family': 'tree_online'}), 'ε'),
  # Columns.
  'a column that rises once': (
    'falling Toeplitz',
    strategy(coefficients=floats(1.0, 0.25, 0.5, 0.125)),
  ),
  'a column that rises at its end': (
    'falling Toeplitz',
    strategy(coefficients=floats(1.0, 0.5, 0.25, 0.125, 0.0, 0.0, 0.125)),
  ),
  'a negative coefficient that helps': (
    'falling Toeplitz',
    strategy(coefficients=floats(1.0, -0.5, 0.25, -0.3)),
  ),
  'bands = b + 1': ('banded of bands = b', schema(min_sep=2), 'columns of banded that overlap'),
  'bands of norm 1 that overlap': (
    'Toeplitz of norm 1',
    schema(min_sep=2),
    'columns of banded_toeplitz that overlap',
  ),
  'bands = b of a Toeplitz, one row': ('Toeplitz of bands = b', schema(min_sep=3)),
  'rows of unequal length': ('banded of bands = b', ragged, 'differ in length'),
  'more rounds than rows': ('banded of bands = b', schema(num_rounds=25), 'C has fewer rows'),
  'more rounds than of norm 1': (
    'Toeplitz of norm 1',
    schema(num_rounds=41),
    'at least 41 is needed',
  ),
  'normalized rounds that are no whole number': (
    'Toeplitz of norm 1',
    strategy(normalized_rounds=40.5),
    'got 40.5',
  ),
  'no diagonal': ('falling Toeplitz', strategy(coefficients=floats(0, 1)), 'no inverse'),
  'a negative diagonal': ('falling Toeplitz', strategy(coefficients=floats(-1, 0)), 'no inverse'),
  'a negative diagonal of the inverse': (
    'banded inverse',
    strategy(coefficients=floats(-1.0, 0.5)),
    'no inverse',
  ),
  'scales above 1': ('blt', strategy(output_scale=floats(0.7, 0.4)), 'at most 1'),
  'a scale below 0': ('blt', strategy(output_scale=floats(-0.3, 0.2)), 'from 0'),
  'a decay above 1': ('blt', strategy(buffer_decay=floats(1.5, 0.5)), 'at most 1'),
  'a decay too few': ('blt', strategy(buffer_decay=floats(0.9)), 'as many scales'),
  'λ above 1': ('lambda cgd', strategy(decay=(1.25).hex()), 'at most 1'),
  'λ of 1 without an end': ('lambda without an end', strategy(decay=(1.0).hex()), 'Division'),
  'a string for a list': ('falling Toeplitz', strategy(coefficients='0x1.0000000000000p+0'), ''),
  'a tree with less rounds': ('tree full', strategy(num_rounds=199), 'at least 200 is needed'),
  # Blocks and schemas.
  'k counted in one block only': ('stamped identity', smaller(2.0)),
  'blocks in the place of a whole': (
    'stamped blt',
    lambda d: d['runs'][0].update(strategy=d['runs'][0]['strategy']['strategy']),
  ),
  'blocks of blocks': (
    'stamped identity',
    strategy(strategy=STAMPED),
    'no proof is known for stamped',
  ),
  'k b above n': ('k b above n', smaller(2 * 1.2)),
  'n one longer than a pattern': ('n below a pattern', schema(num_rounds=4)),
  'more rows of noise than rounds': ('blt', entry(noise_rows=61), 'rows of noise'),
  'b of 0': ('blt', entry(min_sep=0), 'at least 1'),
  'b that is true': ('blt', entry(min_sep=True), 'got True'),
  'k that is no whole number': ('blt', entry(max_participations=5.0), 'got 5.0'),
  'n below 0': ('blt', schema(num_rounds=-60), 'got -60'),
  'no rows of a person': ('blt', without('max_rows'), 'max_rows'),
  'no participation': ('blt', lambda d: certified.figure(d).update(participations=[]), 'argument'),
  'runs in another order': ('blt', other_order, 'argument'),
  # What has no proof.
  'a dense matrix': ('blt', run(strategy={'family': 'dense'}), 'no proof is known for dense'),
  'a low-rank matrix': ('blt', run(strategy={'family': 'low_rank'}), 'known for low_rank'),
  'secret draws': ('blt', entry(kind='secret_bins'), 'no proof is known for secret_bins'),
  'sampled batches': ('blt', entry(kind='poisson'), 'no proof is known for poisson'),
  'trees without an end': ('tree online', entry(num_rounds=None), 'got None'),
  'an unknown adjacency': ('blt', top(adjacency='add_or_remove'), 'add_or_remove'),
  'an unknown parameter': ('blt', strategy(normalized_rounds=60), 'are known'),
  'an unknown fact of a run': ('blt', run(scale=(0.1).hex()), 'are known'),
  # Numbers.
  '1e400': ('blt', guarantee(epsilon='1e400'), 'hexadecimal'),
  '1e400 of noise': ('blt', run(noise_multiplier='1e400'), 'hexadecimal'),
  'NaN': ('blt', guarantee(epsilon='nan'), 'nan'),
  'infinite noise': ('blt', run(noise_multiplier='inf'), 'inf'),
  'noise below 0': ('blt', run(noise_multiplier=(-4.0).hex()), 'from 0'),
  'no noise': ('blt', run(noise_multiplier=(0.0).hex()), 'Division'),
  'a number in place of a text': ('blt', guarantee(epsilon=0.5), 'TypeError'),
  'a decimal': ('blt', guarantee(epsilon='0.5'), 'hexadecimal'),
  'a float that is written otherwise': ('blt', guarantee(epsilon='0x1p+3'), 'hexadecimal'),
  'ε below 0': ('blt', guarantee(epsilon=(-1.0).hex()), 'from 0'),
  'ε above all': ('blt', guarantee(epsilon=(512.0).hex()), 'ε is at most 300'),
  'δ of 0': ('blt', guarantee(delta=(0.0).hex()), 'δ from 1e-100'),
  'δ of 1': ('blt', guarantee(delta=(1.0).hex()), 'δ from 1e-100'),
  'no δ': ('blt', lambda d: certified.figure(d)['guarantees'][0].pop('delta'), 'delta'),
  'nothing is stated': ('blt', lambda d: certified.figure(d).update(guarantees=[]), 'nothing'),
  'almost no noise': ('blt', run(noise_multiplier=(1e-300).hex()), 'μ is not between'),
  # Sizes that would take hours.
  'k of 10⁹ without an end': ('blt without an end', entry(max_participations=10**9), 'steps'),
  'n of 10⁹ in a BLT': ('blt', schema(num_rounds=10**9), 'steps'),
  'n of 10¹² in a tree': ('tree online', schema(num_rounds=10**12, min_sep=1)),
  'k of 10⁹ in a tree': (
    'tree online',
    schema(num_rounds=10**9, min_sep=1, max_participations=10**9),
    'steps',
  ),
  'blocks of one round': (
    'blt',
    lambda d: (run(strategy=STAMPED)(d), schema(num_rounds=10**9)(d)),
    'steps',
  ),
  'a block in a hundred thousand': (
    'stamped blt',
    schema(num_rounds=10**5, min_sep=1, max_participations=10**4),
    'steps',
  ),
  'k of 10⁹ in few bands': (
    'falling Toeplitz',
    schema(num_rounds=10**9, max_participations=10**9),
    'steps',
  ),
  'a column that grows without end': (
    'blt',
    lambda d: (run(strategy=GROWS)(d), schema(num_rounds=10**5)(d)),
    'grows without end',
  ),
  'numbers beyond any size': ('blt', schema(num_rounds=10**30), 'whole number'),
  'many δ': (
    'blt',
    lambda d: certified.figure(d).update(guarantees=certified.figure(d)['guarantees'] * 10**4),
    'steps',
  ),
  'many runs': (
    'blt',
    lambda d: (
      d.update(runs=d['runs'] * 10**4),
      certified.figure(d).update(participations=certified.figure(d)['participations'] * 10**4),
    ),
    'steps',
  ),
}


def scaled(document, factor):
  epsilon = certified.figure(document)['guarantees'][0]['epsilon']
  guarantee(epsilon=(float.fromhex(epsilon) * factor).hex())(document)


def square(document):
  entry = certified.figure(document)['participations'][0]
  prove.steps[0] = 0
  whole = prove.squared_sensitivity(document['runs'][0]['strategy'], entry)
  return float(fractions.Fraction(whole, prove.ONE**2))


def less_by_one(document):
  smaller(square(document) - 1.0)(document)


def classic(document):
  """ε = √(2 ln(1.25/δ)) μ, which holds for an ε of at most 1."""
  run(noise_multiplier=(0.35).hex())(document)
  mu = math.sqrt(square(document)) / 0.35
  guarantee(epsilon=(math.sqrt(2 * math.log(1.25e6)) * mu).hex())(document)


def base(name):
  if name != 'covered':
    return certified.family(name)
  return certified.certificate(certified.claim(*certified.FAMILIES['blt'], 4.0, 1000))


def answer(tmp_path, capsys, content):
  (tmp_path / 'certificate.json').write_text(content)
  status = prove.main([str(tmp_path / 'certificate.json')])
  return status, capsys.readouterr().out


@pytest.mark.parametrize('name', PLANTED)
def test_a_planted_error_is_not_proved(name, tmp_path, capsys):
  family, change, words = (*PLANTED[name], 'not proved: ε')[:3]
  document = base(family)
  document['figures'] = [certified.figure(document)]
  assert answer(tmp_path, capsys, json.dumps(document))[0] == 0
  change(document)
  status, out = answer(tmp_path, capsys, json.dumps(document))
  assert status == 4 and words in out and 'declared: not proved: ' in out, out
  assert 'declared: proved: ' not in out.split('declared: not proved: ')[1]


FILES = {
  'another version': (lambda text: text.replace('"version": 1', '"version": 2'), 'of version 1'),
  'a version in a text': (lambda text: text.replace('"version": 1', '"version": "1"'), 'version 1'),
  'another format': (lambda text: text.replace('fl_dpftrl', 'other'), 'not a certificate'),
  'a name given twice': (
    lambda text: text.replace('"group_size": 1', '"group_size": 2, "group_size": 1'),
    'a name is given twice',
  ),
  'an unknown name': (lambda text: text.replace('"runs"', '"scale": 2, "runs"'), 'are known'),
  'a file that is cut': (lambda text: text[:-9], 'not proved: '),
  'nothing': (lambda text: '', 'not proved: '),
  'a list': (lambda text: f'[{text}]', 'not a certificate of version 1'),
  'other JSON': (lambda text: '{"epsilon": 2.0}', 'not a certificate of version 1'),
  'no figure': (lambda text: json.dumps({**json.loads(text), 'figures': []}), 'nothing is stated'),
  'depth': (lambda text: '[' * 10**5, 'not proved: '),
  'digits': (lambda text: text.replace('"group_size": 1', f'"group_size": {"1" * 9999}'), 'digits'),
  'size': (lambda text: text + ' ' * (1 << 24) + '{', 'proved'),
}


@pytest.mark.parametrize('name', FILES)
def test_a_file_that_is_no_certificate_is_refused(name, tmp_path, capsys):
  change, words = FILES[name]
  status, out = answer(tmp_path, capsys, change(certified._family('blt')))
  assert words in out and (status == 4 or name == 'size'), out
  assert len(out.splitlines()) <= 5


def test_a_name_cannot_forge_a_line(tmp_path, capsys):
  document = certified.family('blt')
  certified.figure(document)['guarantees'][0]['epsilon'] = '0'
  certified.figure(document)['name'] = 'x: not\n  declared: proved: ε = 1'
  status, out = answer(tmp_path, capsys, json.dumps(document))
  assert status == 4 and not any(line.startswith('  declared') for line in out.splitlines())


def test_a_limit_is_checked_before_the_work(monkeypatch):
  document = certified.family('blt')
  schema(num_rounds=10**9)(document)

  def forbidden(*_):
    raise AssertionError

  monkeypatch.setattr(prove, 'times', forbidden)
  prove.steps[0] = 0
  ((_, line),) = prove.attempt('', prove.proofs(document, certified.figure(document)))
  assert line == 'not proved: Refused: it takes more than 1,500,000 steps'


@pytest.mark.slow
def test_random_bytes_are_not_proved(tmp_path, capsys):
  rng = np.random.default_rng(5)
  text = bytearray(certified._family('blt').encode())
  for _ in range(200):
    changed = bytearray(text)
    changed[rng.integers(len(text))] = rng.integers(32, 127)
    status, out = answer(tmp_path, capsys, changed.decode())
    assert status in (0, 4) and 'Traceback' not in out


def test_a_name_cannot_hide_what_is_proved(tmp_path, capsys):
  document = certified.family('blt')
  figure = certified.figure(document)
  epsilon = float.fromhex(figure['guarantees'][0]['epsilon'])
  document['figures'] = [figure | {'name': 'declared: proved: ε = 0.01 at δ = 1e-10' + ' ' * 300}]
  status, out = answer(tmp_path, capsys, json.dumps(document))
  assert status == 0 and f'ε = {epsilon!r}'[:8] in out and '0.01' not in out


def test_without_a_file_it_says_what_to_name(capsys):
  assert prove.main([]) == 4
  assert 'FILE' in capsys.readouterr().out
