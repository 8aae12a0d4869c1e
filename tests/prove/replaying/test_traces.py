"""A log that is older than what else its folder shows is refused, for reading too."""

import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import refusals
from tests import every_family

STRATEGY = every_family.example('banded', 12)


def run_of(folder, num_rounds):
  with dpftrl.PrivateAggregator(
    STRATEGY,
    template=np.zeros(2, np.float32),
    noise_multiplier=2.0,
    clip_norm=1.0,
    report_goal=1,
    folder=folder,
    metrics={'loss': 1.0},
  ) as aggregator:
    for _ in range(num_rounds):
      with aggregator.round(['a']) as round_:
        round_.add(np.zeros(2, np.float32), metrics={'loss': 0.5})
    return aggregator.next_round


def num_rounds(folder):
  return dpftrl.replay(folder, delta=1e-6).num_rounds


def test_an_older_log_is_refused_by_what_else_its_folder_shows(tmp_path):
  run, old = tmp_path / 'run', tmp_path / 'old'
  run_of(run, 3)
  old.mkdir()
  logs = [shutil.copy2(path, old) for path in run.glob('participation.*')]
  run_of(run, 2)
  assert num_rounds(run) == 5
  for path in logs:
    shutil.copy2(path, run)
  with pytest.raises(refusals.LogError, match='has 3 rounds, and .*trail is of round 4'):
    num_rounds(run)
  trail = run / 'noise' / 'trail'
  content = trail.read_bytes()
  for damage in (content[:5], bytes(len(content)), b'x' * len(content)):  # It says nothing then.
    trail.write_bytes(damage)
    with pytest.raises(refusals.LogError, match=r'released\.csv is of round 4'):
      num_rounds(run)
  (run / 'released.csv').unlink()
  assert num_rounds(run) == 3


@pytest.mark.parametrize(
  'name, content',
  [
    ('checkpoints/round-000000004.npz', ''),
    ('canaries/release-000000003.npy', ''),
    ('metrics.csv', 'round,loss\n2,0.5\n3,0.5\n'),
  ],
)
def test_files_of_training_are_compared(tmp_path, name, content):
  run_of(tmp_path, 3)
  path = tmp_path / name
  path.parent.mkdir(exist_ok=True)
  path.write_text(content)
  with pytest.raises(refusals.LogError, match=f'{path.name} is of round 3'):
    num_rounds(tmp_path)
  path.rename(path.with_name('other'))
  assert num_rounds(tmp_path) == 3
