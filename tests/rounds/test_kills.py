"""The proofs of tests/rounds/kills.py notice what they are there for; the kills are run by hand."""

import json
import multiprocessing

import pytest

from tests.rounds import kills


def _released(facts):
  return [fact for fact in facts if 'released' in fact]


def twice(facts):
  return [*facts, _released(facts)[3]]


def another_row(facts):
  first, second = _released(facts)[4:6]
  first['mean'], second['mean'] = second['mean'], first['mean']
  return facts


def beyond_the_mark(facts):
  return [*facts, dict(_released(facts)[0], released=99)]


def another_cohort(facts):
  return [*facts, dict(begun=3, devices=['nobody'])]


@pytest.mark.slow
def test_proofs_hold_of_a_run_and_of_no_changed_one(tmp_path):
  folder, journal, name = tmp_path / 'run', tmp_path / 'journal', tmp_path / 'any_loop'
  program = (kills.EXAMPLES / 'any_loop.py').read_text()
  name.with_suffix('.py').write_text(
    program.replace('ROUNDS = 600, 20, 60', 'ROUNDS = 600, 20, 12')
  )
  arguments = (str(name), folder, journal, tmp_path / 'out')
  process = multiprocessing.get_context('spawn').Process(target=kills.child, args=arguments)
  process.start()
  process.join()
  proof = kills.Proof(folder, journal)
  proof.check()
  proof.check_rows()
  assert proof.has_ended and len(proof.released) == 12 and proof.replay() > 4.0
  lines = journal.read_text()
  for change, message in (
    (twice, 'is in two releases'),
    (another_row, 'release 4 is not its sum plus row 4'),
    (beyond_the_mark, '12 rows are marked as used, and 99 was released'),
    (another_cohort, 'round 3 has another cohort in the log'),
  ):
    facts = change([json.loads(line) for line in lines.split('\n') if line])
    journal.write_text('\n'.join(map(json.dumps, facts)))
    proof = kills.Proof(folder, journal)
    with pytest.raises(ValueError, match=message):
      proof.check()
      proof.check_rows()
