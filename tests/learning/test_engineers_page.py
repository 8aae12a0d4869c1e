"""The complete programs of the page for engineers run, and their logs are replayed."""

import pathlib
import re

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
  assert len(BLOCKS) == 1 + len(TITLES) == 8


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


def run(title, names):
  names = dict(names)
  exec(compile(OTHERS[TITLES.index(title) - 1], f'{PAGE.name}: {title}', 'exec'), names)
  return names


@pytest.mark.parametrize('title', TITLES[2:-1])
def test_a_program_trains_and_keeps_its_budget(title, names):
  before = [w.copy() for w in names['weights'].trainable]
  after = run(title, names)['weights'].trainable
  assert any((a != b).any() for a, b in zip(before, after))


def test_train_model_burns_the_row_of_a_discarded_round(names):
  guard = run(TITLES[1], names)['guard']
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
