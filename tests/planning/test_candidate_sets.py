"""Candidates: mechanisms, sizes and given strategies."""

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.planning import candidate_sets as lib
from tests import made

SCHEMA = dpftrl.MinSep(num_rounds=40, min_sep=10, max_participations=3)


def test_names():
  found = lib.named(['identity', 'blt:2', 'blt-b400', 'banded'])
  assert [c.label for c in found] == ['identity', 'blt:2', 'blt-b400', 'banded']
  assert [c.mechanism for c in found] == ['identity', 'blt', 'blt', 'banded']
  assert found[2].find(SCHEMA, objective='rms') == (dpftrl.load_strategy('blt-b400'))
  assert found[1].find(SCHEMA, objective='max').num_buffers == 2


def test_a_file_may_be_given_another_name(tmp_path):
  path = tmp_path / 'blt.json'
  workload = dpftrl.Workload(0.9, 0.1)
  dpftrl.save_strategy(
    path, dpftrl.BLT([0.5], [0.5]), schema=SCHEMA, objective='max', workload=workload
  )
  with pytest.raises(ValueError, match="called 'blt'.* with label=file"):
    lib.named(['blt', str(path)])
  found = lib.named(['blt', f'mine={path}', 'blt-b400'])
  assert [c.label for c in found] == ['blt', 'mine', 'blt-b400']
  assert [c.workload for c in found] == [None, workload, dpftrl.Workload()]
  labelled = lib.named({'mine': dpftrl.BLT([0.5], [0.5]), 'theirs': str(path), 'searched': 'blt:2'})
  assert [c.label for c in labelled] == ['mine', 'theirs', 'searched']
  assert [c.optimised for c in labelled] == [False, False, True]
  for label in ('', 7):
    with pytest.raises(ValueError, match='a label of mechanisms must be text'):
      lib.named({label: 'blt'})
  odd = tmp_path / 'a=b.json'
  odd.write_text(path.read_text())
  assert lib.named([str(odd)])[0].label == 'a=b'


@made.cases(
  'names, message',
  (['nope'], "'nope' is no .*blt, or one of a module to --import"),
  (['blt:'], 'num_buffers after the colon'),
  (['blt:-1'], 'num_buffers after the colon'),
  (['blt:²'], 'num_buffers after the colon'),
  (['tree_online:3'], 'takes no size'),
  (['blt', 'banded', 'blt'], "called 'blt'"),
)
def test_refusals(names, message):
  with pytest.raises(ValueError, match=message):
    lib.named(names)


def test_a_broken_file_says_what_is_wrong_with_it(tmp_path):
  path = tmp_path / 'mine.json'
  path.write_text('{"format": "other"}')
  with pytest.raises(ValueError, match='format must be'):
    lib.named([str(path)])


def test_a_name_that_is_nearly_right_is_told_which():
  with pytest.raises(ValueError, match=r"'bandedd' is no .*: did you mean banded or "):
    lib.named(['bandedd'])
