"""Sampled batches, replayed and accounted by command lines."""

import json
import re

import numpy as np
import pytest

from fl_dpftrl.centralized import partition, sampling
from fl_dpftrl.logs import schema
from tests.commands import lines

SIZES = dict(num_rounds=90, num_examples=600, batch_size=25, num_parts=3)
FLAGS = '--num_examples=600 --batch_size=25 --num_parts=3'
RUN = '--strategy=identity --noise_multiplier=3 --delta=1e-6'


@pytest.fixture(name='log', scope='module')
def fixture_log(tmp_path_factory):
  """Gives the log of a scheme by the scheme's name."""
  folder = tmp_path_factory.mktemp('logs')
  for name, kind in sampling.SCHEMES.items():
    cohorts = list(partition.Partition(scheme=kind(**SIZES), seed=1).rounds())
    schema.write_log(
      folder / f'{name}.parquet',
      rounds=np.repeat(np.arange(90), [c.device_ids.size for c in cohorts]),
      device_ids=np.concatenate([c.device_ids for c in cohorts]),
      num_rounds=90,
    )
  return lambda name: folder / f'{name}.parquet'


def call(*flags):
  return lines.run([part for flag in flags for part in str(flag).split()])


@pytest.mark.parametrize('name', sampling.SCHEMES)
def test_replay_and_account_say_the_same(log, name):
  common = f'{RUN} {FLAGS} --delta=1e-8 --sampling={name} --json'
  done = call('replay', f'--log={log(name)}', common)
  assert done.returncode == 0
  assert not done.stderr
  stated = json.loads(done.stdout)
  account = json.loads(call('account --num_rounds=90', common).stdout)
  part = 'shuffled' if 'shuffled' in name else 'amplified'
  assert stated[part]['holds'] is True
  for field in (
    'sampling',
    'num_examples',
    'batch_size',
    'num_parts',
    'sensitivity',
    'sensitivity_kind',
    'effective_noise_multiplier',
    'rho',
    'epsilon',
    'curve',
    'adjacency',
    *(
      ('min_sep', 'max_participations', 'separation')
      if part == 'shuffled'
      else ('sampling_probability', 'compositions')
    ),
  ):
    assert stated[part][field] == account[field], field


def test_parts_are_the_bands_unless_said(log):
  stated = json.loads(
    call(
      'replay --json --sampling=fixed_size --num_examples=600',
      f'--batch_size=25 --log={log("fixed_size")}',
      RUN,
    ).stdout
  )
  # The log has three parts, a strategy without bands needs one.
  assert stated['amplified']['num_parts'] == 1
  assert stated['amplified']['holds'] is False


def test_a_contradiction_is_loud(log, tmp_path):
  page = tmp_path / 'p.html'
  done = call(
    'replay', f'--log={log("shuffled")}', RUN, FLAGS, '--sampling=poisson', f'--report={page}'
  )
  assert done.returncode == 4
  line, verdict = done.stderr.splitlines()
  assert verdict == 'fl-dpftrl replay: the log contradicts --sampling=poisson'
  assert 'THE LOG CONTRADICTS --sampling=poisson' in line
  assert 'in two successive turns' in line
  head = next(l for l in done.stdout.splitlines() if 'worst case' in l)
  assert head.split('  ')[-1] == 'amplified: VOID'
  value = next(l for l in done.stdout.splitlines() if l.startswith('ε at'))
  assert value.split()[-1] == 'none'
  text = page.read_text()
  assert 'The log contradicts the stated sampling' in text
  assert '--sampling=poisson --num_examples=600' in text


def test_the_table_has_a_column_for_it(log):
  done = call(
    'replay', f'--log={log("poisson")}', RUN, FLAGS, '--sampling=poisson', '--declared_min_sep=4'
  )
  head = next(l for l in done.stdout.splitlines() if 'worst case' in l)
  assert head.split()[-3:] == ['declared:', 'VOID', 'amplified']
  assert 'as secret as the draws' in done.stdout


def test_publication_says_why_it_has_no_amplified_figure(log, tmp_path):
  page = tmp_path / 'p.html'
  done = call(
    'replay', f'--log={log("poisson")}', RUN, FLAGS, '--sampling=poisson', f'--public_report={page}'
  )
  assert '--public_report leaves out the amplified guarantee' in done.stderr
  assert '--sampling' not in page.read_text()


@pytest.mark.parametrize(
  'flags, message',
  [
    (f'--sampling=poisson {FLAGS} --restart=4', 'the same throughout'),
    (f'--sampling=poisson {FLAGS} --noise_multiplier_from=4:2', 'same through'),
    (f'--sampling=poisson {FLAGS} --group_size=2', 'group_size=2 is refused'),
    (f'--sampling=poisson {FLAGS} --adjacency=add_or_remove', 'is refused'),
    (f'--sampling=other {FLAGS}', 'shuffled_once'),
    (FLAGS, '--num_examples=600 needs --sampling'),
    ('--sampling=poisson', '--sampling=poisson needs --num_examples'),
    (f'--sampling=poisson {FLAGS} --strategy=blt-b400', 'needs a banded strat'),
    (f'--sampling=poisson {FLAGS} --batch_size=300', 'batch_size=300 is more'),
  ],
)
def test_refuses_in_one_line(log, flags, message):
  done = call('replay', f'--log={log("poisson")}', RUN, flags)
  assert done.returncode == 2
  assert not done.stdout
  (line,) = done.stderr.splitlines()
  assert message in line


def test_refuses_several_runs():
  done = call('replay --runs=runs.json --delta=1e-6 --sampling=poisson')
  assert done.returncode == 2
  (line,) = done.stderr.splitlines()
  assert '--sampling does not go with --runs' in line


def test_the_page_speaks_of_examples(log, tmp_path):
  path = tmp_path / 'page.html'
  flags = f'{RUN} {FLAGS} --delta=1e-8 --sampling=fixed_size'
  call('replay', f'--log={log("fixed_size")}', flags, f'--report={path}')
  words = ' '.join(re.sub('<[^>]*>', ' ', path.read_text()).split())
  shown = words[: words.index('Outside the guarantee')]
  for expected in ('every example that took part', 'privacy: an example', 'share of examples'):
    assert expected in shown
  # The assumptions are those of the statement, which are about logs of any kind.
  shown = re.sub('Assumptions worst case:.*Formal statement', '', shown)
  assert not re.findall(r'(?<![\w.])devices?(?![\w.])', shown), shown
