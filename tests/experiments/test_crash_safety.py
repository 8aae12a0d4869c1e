"""A run that is killed, at any point, loses the round under way and nothing else."""

import random
import shutil
import signal
import time

import numpy as np
import pytest

from tests.experiments import runs

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def killed_after(process, seconds: float) -> int:
  """Kills a paused process so long after it went on; returns its exit status."""
  process.wait_until_paused()
  process.go_on()
  time.sleep(seconds)
  process.send_signal(signal.SIGKILL)
  return process.wait()


def test_killed_interrupted_and_killed_at_a_random_point(undisturbed, killed, tmp_path):
  folder = shutil.copytree(killed, tmp_path / 'run')
  temporary = folder / '.temporary'
  assert temporary.is_dir()
  (temporary / 'code.py').write_text('half')
  process = runs.start(folder, pause_at=('computed', 7))
  process.wait_until_paused()
  process.send_signal(signal.SIGTERM)
  process.go_on()
  assert runs.ended(process)[0] == 143 and not temporary.exists()
  process = runs.start(folder, pause_at=('cohort logged', 9))
  # A stop acts between rounds: round 8 may be over. Unscheduled for long, the run is at its end.
  assert killed_after(process, random.Random(5).uniform(0.0, 0.15)) in (-signal.SIGKILL, 0)
  runs.finish(folder)
  assert_lost(folder, undisturbed.folder, burnt(folder))


def burnt(folder):
  return set(runs.read(folder, 'summary.json')['burnt_rounds'])


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
