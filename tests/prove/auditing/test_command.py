"""The audit command: its output, exit status and refusals."""

import shlex

import pytest

from fl_dpftrl.commands import output
from fl_dpftrl.run import audited
from tests.commands import lines

FLAGS = shlex.split(
  '--strategy=tree_online --noise_multiplier=2 --delta=1e-6 --num_rounds=8 --min_sep=4'
  ' --seed=1 --num_draws=2000'
)


def run(*argv):
  done = lines.run(['audit', *argv])
  return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_broken_mechanism_exits_with_4(monkeypatch):
  sound = audited.Audited.run
  quieter = lambda *args: 0.8 * sound(*args)
  monkeypatch.setattr(audited.Audited, 'run', quieter)
  monkeypatch.setattr(output, 'SECONDS', float('inf'))
  status, out, err = run(*FLAGS)
  assert status == 4
  assert err.startswith('fl-dpftrl audit: the claim does not hold; failed checks: ')
  assert 'noise_scale' in err and err.count('\n') == 1
  assert 'failed: ' in out and 'the claim does not hold' in out
  assert '- noise_scale: there is more or less noise than claimed' in out
