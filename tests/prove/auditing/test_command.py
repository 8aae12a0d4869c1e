"""The audit command: its output, exit status and refusals."""

import os
import shlex

from fl_dpftrl.prove import auditing
from tests.commands import lines

FLAGS = shlex.split(
  '--strategy=tree_online --noise_multiplier=2 --delta=1e-6 --num_rounds=8 --min_sep=4'
  ' --executor=engine --seed=1 --num_draws=2000'
)


def run(*argv):
  done = lines.run(['audit', *argv])
  return done.returncode, done.stdout, done.stderr


def test_tensorflow_is_told_to_be_quiet_before_it_is_loaded(monkeypatch):
  names = ('TF_CPP_MIN_LOG_LEVEL', 'TF_ENABLE_ONEDNN_OPTS')
  for name in names:
    monkeypatch.setenv(name, '')  # Restored after the test, as setdefault would not be.
    monkeypatch.delenv(name)
  found = []
  sound = auditing.audit
  record = lambda *args, **kwargs: (
    found.extend(map(os.environ.get, names)) or sound(*args, **kwargs)
  )
  monkeypatch.setattr(auditing, 'audit', record)
  assert run(*FLAGS)[0] == 0
  assert found == ['3', '0']


def test_a_broken_mechanism_exits_with_4(monkeypatch):
  sound = auditing.procedure.subjects.RowSubject.run
  quieter = lambda *args: 0.8 * sound(*args)
  monkeypatch.setattr(auditing.procedure.subjects.RowSubject, 'run', quieter)
  status, out, err = run(*FLAGS)
  assert status == 4
  assert err.startswith('fl-dpftrl audit: the claim does not hold; failed checks: ')
  assert 'noise_scale' in err and err.count('\n') == 1
  assert 'failed: ' in out and 'the claim does not hold' in out
  assert '- noise_scale: there is more or less noise than claimed' in out
