"""A run that is killed, at any point, loses the round under way and nothing else."""

import shutil
import signal

import numpy as np
import pytest

from tests.experiments import runs

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def test_killed_interrupted_and_killed_within_a_round(undisturbed, killed, tmp_path):
  folder = shutil.copytree(killed, tmp_path / 'run')
  temporary = folder / '.temporary'
  assert temporary.is_dir()
  (temporary / 'code.py').write_text('half')
  process = runs.start(folder, pause_at=('computed', 7))
  process.wait_until_paused()
  process.send_signal(signal.SIGTERM)
  process.go_on()
  assert runs.ended(process)[0] == 143 and not temporary.exists()
  runs.killed(folder, 'cohort logged', 9)
  runs.finish(folder)
  burnt = set(runs.read(folder, 'summary.json')['burnt_rounds'])
  assert 9 in burnt
  assert_lost(folder, undisturbed.folder, burnt)


def assert_lost(folder, undisturbed, lost):
  """A run is as one that was not killed, but for the results of some rounds."""
  kept = [r for r in range(runs.NUM_ROUNDS) if r not in lost]
  rows = runs.table(folder) if kept else []
  assert [int(row['round']) for row in rows] == kept
  # Each result has the row of noise of its own round, so none is used twice.
  assert all(row['aggregator/noise_row'] == row['round'] for row in rows)
  own, other = runs.noise_state(folder), runs.noise_state(undisturbed)
  compared = 2 if runs.NUM_ROUNDS - 1 in lost else 4  # A burnt row leaves no deviation and trail.
  assert own[1] == runs.NUM_ROUNDS and (compared == 2 or own[3] != 0)
  for mine, theirs in zip(own[:compared], other):
    np.testing.assert_array_equal(mine, theirs)
  assert runs.log(folder) == runs.log(undisturbed)
  statement, expected = (runs.read(f, 'privacy.json') for f in (folder, undisturbed))
  assert statement['num_rounds'] == runs.NUM_ROUNDS
  assert statement['worst_case'] == expected['worst_case']
  assert statement['num_participations'] == expected['num_participations']


def test_a_given_noise_seed_voids_the_guarantee(undisturbed):
  folder = undisturbed.folder
  assert 'none: the noise seed was given' in undisturbed.out
  assert 'noise seed' in runs.read(folder, 'privacy.json')['void_reason']
  assert 'noise seed was given' in (folder / 'privacy.html').read_text()
  assert runs.read(folder, 'hparams.json')['noise_seed'] == 'given'
