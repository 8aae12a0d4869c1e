"""The complete programs of the page for engineers run, and their logs are replayed."""

import pathlib
import re
import types

import pytest
import tensorflow_federated as tff

import fl_dpftrl as dpftrl

pytestmark = [pytest.mark.tff, pytest.mark.slow]

PAGE = pathlib.Path(dpftrl.__file__).parents[1] / 'docs' / 'engineer.md'
_, PROGRAMS = PAGE.read_text().split('## Complete programs', 1)
BLOCKS = re.findall(r'```python\n(.*?)```', PROGRAMS, re.DOTALL)
BEGINNING, OWN_LOOP, *OTHERS = BLOCKS
TITLES = re.findall(r'^### (.*)$', PROGRAMS, re.MULTILINE)


def test_each_title_has_a_program():
  assert len(BLOCKS) == 1 + len(TITLES) == 9


@pytest.fixture(name='names', scope='module')
def fixture_names(tmp_path_factory):
  """What the beginning and the loop of one's own define, after they ran."""
  stack, names = tff.framework.get_context_stack(), {}
  before = stack.current
  with pytest.MonkeyPatch.context() as patched:
    patched.chdir(tmp_path_factory.mktemp('page'))
    for program in (BEGINNING, OWN_LOOP):
      exec(compile(program, PAGE.name, 'exec'), names)
    yield names
  stack.set_default_context(before)


def run(title, names, **others):
  names = {**names, **others}
  exec(compile(OTHERS[TITLES.index(title) - 1], f'{PAGE.name}: {title}', 'exec'), names)
  return names


@pytest.mark.parametrize('title', TITLES[3:-1])
def test_a_program_trains_and_keeps_its_budget(title, names):
  before = [w.copy() for w in names['weights'].trainable]
  after = run(title, names)['weights'].trainable
  assert any((a != b).any() for a, b in zip(before, after))


def test_a_killed_loop_resumes_and_burns_the_row_of_the_lost_round(names):
  rows, asked = [], []

  def data_of(device_id):
    if len(asked) == 2 * 4:  # The third round was admitted, and is not computed.
      raise KeyboardInterrupt
    asked.append(device_id)
    return names['data_of'](device_id)

  with pytest.raises(KeyboardInterrupt):
    run(TITLES[1], names, data_of=data_of)

  class States(tff.program.FileProgramStateManager):
    async def save(self, state, version):
      rows.append(int(state.aggregator.noise.row))
      await super().save(state, version)

  program = types.SimpleNamespace(**{**vars(tff.program), 'FileProgramStateManager': States})
  seen = types.SimpleNamespace(**{**vars(tff), 'program': program})
  run(TITLES[1], names, tff=seen)
  assert rows == [4, 5, 6]  # Row 2 entered no other sum.
  statement = dpftrl.replay(dpftrl.open_run('resumed/log.parquet', names['strategy']), deltas=1e-6)
  assert statement.num_rounds == 6 and statement.declared.holds


def test_train_model_burns_the_row_of_a_discarded_round(names):
  guard = run(TITLES[2], names)['guard']
  assert guard.num_rounds == 4  # Three rounds and a burnt one.
  statement = dpftrl.replay(dpftrl.open_run('train_model.parquet', names['strategy']), deltas=1e-6)
  assert statement.num_rounds == 4 and statement.declared.holds


def test_moving_to_a_blt_adds_up_both_mechanisms(names):
  moved = run(TITLES[-1], names)
  statement, tree = moved['statement'], moved['tree']
  assert statement.void_reason is None
  (facts,) = statement.runs
  assert facts.restarts == (4,) and facts.later_strategies[0][1].family == 'blt'
  # Devices of every third round: twice in rounds 0 to 3, and twice in the five rounds after.
  schema = dpftrl.MinSep(num_rounds=4, min_sep=3)
  first = dpftrl.account(tree, schema, noise_multiplier=6.0, delta=1e-6)
  schema = dpftrl.MinSep(num_rounds=5, min_sep=3)
  second = dpftrl.account(names['strategy'], schema, noise_multiplier=4.0, delta=1e-6)
  assert statement.worst_case.rho == pytest.approx(first.rho + second.rho, rel=1e-9)
  assert int(moved['state'].aggregator.noise.row) == 5
