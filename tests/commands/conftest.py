"""Command lines, run in this process."""

import json
import shlex

import pytest

from fl_dpftrl.commands import output
from tests.commands import lines


@pytest.fixture
def run(monkeypatch):
  """Runs a command line; gives its exit status, stdout and stderr."""
  # On a busy machine anything may take long enough to be told of.
  monkeypatch.setattr(output, 'SECONDS', float('inf'))

  def run_line(line):
    done = lines.run(shlex.split(line))
    return done.returncode, done.stdout, done.stderr

  return run_line


@pytest.fixture
def result_beside_warnings(run):
  """Runs a command line with --json; gives the object."""

  def run_json(line):
    status, out, err = run(f'{line} --json')
    assert status == 0, err
    return json.loads(out, parse_constant=pytest.fail)

  return run_json


@pytest.fixture
def result(run):
  """Runs a command line with --json that prints nothing to stderr; gives the object."""

  def run_json(line):
    status, out, err = run(f'{line} --json')
    assert (status, err) == (0, '')
    return json.loads(out, parse_constant=pytest.fail)

  return run_json
