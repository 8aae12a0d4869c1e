"""A training run whose clip norm is adaptive: killed, resumed, reported."""

import csv
import json
import pathlib
import signal

import pytest

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record
from tests.experiments import starts

pytestmark = [pytest.mark.tff, pytest.mark.slow]

FLAGS = [
  '--flagfile=experiments/stackoverflow/flags/synthetic.flags',
  '--num_rounds=4',
  '--report_goal=5',
  '--timer_rounds=2',
  '--rounds_per_evaluation=4',
  '--noise_memory=engine',
  '--noise_multiplier=0.5',
  '--noise_seed=3',
  '--clip_norm=0.5',
  '--clip_quantile=0.7',
  '--clip_rounds=2',
]


def train(folder: pathlib.Path, *flags: str, **kwargs) -> starts.Start:
  process = starts.Start(*FLAGS, *flags, f'--output_dir={folder}', **kwargs)
  process.wait()
  return process


def table(folder: pathlib.Path) -> list[dict[str, str]]:
  with (folder / 'metrics.csv').open() as file:
    return [{k: v for k, v in row.items() if k != 'seconds'} for row in csv.DictReader(file)]


def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
  whole, parts = tmp_path / 'whole', tmp_path / 'parts'
  assert train(whole).returncode == 0
  assert train(parts, kill_at=('computed', 1)).returncode == -signal.SIGKILL
  assert train(parts, '--clip_quantile=0.8', '--resume').returncode == 2
  assert train(parts, '--resume').returncode == 0
  assert table(parts) == table(whole)
  assert (parts / 'model.npz').read_bytes() == (whole / 'model.npz').read_bytes()
  norms = [float(row['aggregator/clip_norm']) for row in table(whole)]
  assert norms[0] == 0.5 and len(set(norms)) == 3 and norms[2] == norms[3]
  rule = adaptive_clipping.AdaptiveClipping(0.5, target_quantile=0.7, rounds=2)
  log = log_lib.read_log(whole / 'participation.parquet')
  assert noise_record.read_clipping(log.metadata) == rule
  summary = json.loads((whole / 'summary.json').read_text())
  assert summary['clip_quantile'] == 0.7 and summary['last_clip_norm'] == norms[3]
  assert summary['noise_multiplier'] == 0.5
  stated = json.loads((whole / 'privacy.json').read_text())
  assert stated['adaptive_clipping']['target_quantile'] == 0.7
