"""The programs of the pages for engineers run, and their logs are replayed."""

import dataclasses
import re
import shutil
import types

import pytest
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.support.files import mark
from tests import made, pages

pytestmark = [pytest.mark.tff, pytest.mark.slow]

BEGINNING, LOOP, *OTHERS = pages.programs('aggregator.md')
SUMS = [program for program in OTHERS if '= train(' in program]
RESUMES = LOOP.replace("'own_loop'", "'resumed'")


@pytest.fixture(name='names', scope='module')
def fixture_names(tmp_path_factory):
  """What the beginning and the loop of one's own define, after they ran."""
  stack, names = tff.framework.get_context_stack(), {}
  before = stack.current
  with pytest.MonkeyPatch.context() as patched:
    patched.chdir(tmp_path_factory.mktemp('page'))
    for program in (BEGINNING, LOOP):
      exec(compile(program, 'aggregator.md', 'exec'), names)
    yield names
  stack.set_default_context(before)


def run(program, names, **others):
  names = {**names, **others}
  exec(compile(program, program.partition('\n')[0], 'exec'), names)
  return names


@pytest.mark.parametrize(
  'program',
  [pytest.param(p, marks=pytest.mark.thorough if 'fed_sgd' in p else ()) for p in SUMS],
  ids=['secure', 'metrics', 'sgd'],
)
def test_a_program_trains_and_keeps_its_budget(program, names):
  before = [w.copy() for w in names['weights'].trainable]
  after = run(program, names)['weights'].trainable
  assert any((a != b).any() for a, b in zip(before, after))


@made.cases(
  'page, wanted',
  ('algorithms.md', {'checked'}),
  ('audit.md', {'found'}),
  ('aggregator.md', {'aggregator'}),
  ('run-folder.md', {'aggregator'}),
  ('production.md', {'trained', 'schema'}),
  ('where-rounds-run.md', {'form', 'initialize'}),
)
def test_the_short_programs_of_a_page_run(page, wanted, names):
  given = {'client_data': [names['data_of'](0)], 'client_optimizer': names['sgd'](0.1)}
  names = {**names, **given}
  before = {name: names.pop(name, None) for name in wanted}
  # Others train, as above and below, or need a cluster.
  long = r'= train\(|use_machines\('
  programs = [p for p in pages.programs(page) if not re.search(long, p)]
  if page == 'audit.md':  # Whether it runs needs no power: that is of tests/prove/auditing.
    programs = [p.replace(' divisor=10,', ' divisor=10, num_draws=1000,') for p in programs]
    assert sum('num_draws=1000' in p for p in programs) == 1
  for program in programs:
    names = run(program, {**before, **names})
  assert all(names[name] is not before[name] for name in wanted)


@pytest.mark.parametrize(
  'metrics, error, words',
  [
    ({'loss': 9.0, 'num_batches': 9.0}, ValueError, 'which clients of build_fed_avg send'),
    # The bias has the type of one metric: the mean is then the kernel only, which no model takes.
    ({'loss': 9.0}, TypeError, 'does not produce a compatible'),
  ],
)
@pytest.mark.parametrize('build', ['build_unweighted_fed_avg', 'build_weighted_fed_avg'])
def test_algorithms_of_tff_have_no_place_for_metrics_with_noise(
  build, metrics, error, words, names
):
  aggregator = dataclasses.replace(names['aggregator'], metrics=metrics)
  if build == 'build_weighted_fed_avg':
    aggregator = tff.aggregators.as_weighted_aggregator(aggregator)
  with pytest.raises(error, match=words):
    getattr(tff.learning.algorithms, build)(
      names['model_fn'], names['sgd'](0.1), model_aggregator=aggregator
    )


def test_a_killed_loop_resumes_and_burns_the_row_of_the_lost_round(names):
  rows, asked = [], []

  def data_of(device_id):
    if len(asked) == 2 * 4:  # The third round was admitted, and is not computed.
      raise KeyboardInterrupt
    asked.append(device_id)
    return names['data_of'](device_id)

  with pytest.raises(KeyboardInterrupt):
    run(RESUMES, names, data_of=data_of)

  class States(tff.program.FileProgramStateManager):
    async def save(self, state, version):
      rows.append(int(state.aggregator.noise.row))
      await super().save(state, version)

  program = types.SimpleNamespace(**{**vars(tff.program), 'FileProgramStateManager': States})
  seen = types.SimpleNamespace(**{**vars(tff), 'program': program})
  run(RESUMES, names, tff=seen)
  assert rows == [4, 5, 6]  # Row 2 entered no other sum.
  statement = dpftrl.replay('resumed', delta=1e-6)
  assert statement.num_rounds == 6 and statement.declared.holds
  shutil.rmtree('resumed/states')  # Without them, the run would begin anew at the same ε.
  with pytest.raises(mark.LostStateError, match='no state of them is there'):
    run(RESUMES, names)


def test_the_loop_takes_canaries_with_the_lines_of_their_page(names):
  _, text = (pages.DOCS / 'canaries.md').read_text().split('[A loop in TFF]')
  before, after = [line.partition('#')[0].strip() for line in text.split('```')[1].split('\n')[1:3]]
  lines = {
    "'own_loop'": "'with_canaries'",
    'report_goal=4': 'report_goal=4, canaries=dpftrl.Canaries(4)',
    '        output = process': f'        {before}\n        output = process',
    "['noise_stddev'])}": "['noise_stddev'])}, noised_sum=noised_sum",
    '        round_.released(': f'        {after}\n        round_.released(',
  }
  program = LOOP
  for line, changed in lines.items():
    assert program.count(line) == 1, line
    program = program.replace(line, changed)
  run(program, names)
  audit = dpftrl.audit_run('with_canaries', delta=1e-6)
  assert audit.passed and (audit.num_released, audit.num_canaries) == (6, 4)
