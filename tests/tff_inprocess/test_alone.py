"""The package runs a program that has TFF and nothing of fl_dpftrl."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_a_program_that_knows_no_privacy_runs_in_process(tmp_path):
  shutil.copytree(ROOT / 'tff_inprocess', tmp_path / 'tff_inprocess')
  shutil.copy(ROOT / 'examples/in_process.py', tmp_path)
  (tmp_path / 'fl_dpftrl.py').write_text('raise ImportError("fl_dpftrl is not here")\n')
  variables = {**os.environ, 'PYTHONPATH': str(tmp_path), 'TF_ENABLE_ONEDNN_OPTS': '0'}
  run = subprocess.run(
    [sys.executable, 'in_process.py'], cwd=tmp_path, env=variables, capture_output=True, text=True
  )
  assert run.returncode == 0, run.stderr
  losses = [float(line.split()[-1]) for line in run.stdout.splitlines()]
  assert len(losses) == 10 and losses[-1] < 0.01 < losses[0]
