"""Runs that tests of several modules share. All processes that test make them once."""

import fcntl
import os
import pathlib
import shutil
import subprocess

import pytest

from tests.experiments import runs, starts


@pytest.fixture(name='once', scope='session')
def fixture_once(tmp_path_factory):
  """Returns a function that fills a folder once, for all processes of this session."""
  root = tmp_path_factory.getbasetemp()
  root = root.parent if 'PYTEST_XDIST_WORKER' in os.environ else root

  def once(name, make) -> runs.Finished:
    folder = root / name
    with (root / f'{name}.lock').open('w') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not (folder / 'err').exists():
        shutil.rmtree(folder, ignore_errors=True)  # Of a test that failed.
        folder.mkdir()
        for stream, text in zip(('out', 'err'), make(folder / 'run')):
          (folder / stream).write_text(text)
    return runs.Finished(folder / 'run', *((folder / s).read_text() for s in ('out', 'err')))

  return once


@pytest.fixture(scope='session')
def undisturbed(once) -> runs.Finished:
  """A run with a noise seed to its end."""
  return once('undisturbed', runs.finish)


@pytest.fixture(scope='session')
def killed(once) -> pathlib.Path:
  """A run of the same flags that was killed when round 6 was published."""
  return once('killed', lambda folder: runs.killed(folder, 'published', 6)).folder


@pytest.fixture(scope='session')
def by_engine(once) -> runs.Finished:
  """A run with an engine's noise to its end."""
  return once('by-engine', lambda folder: runs.finish(folder, base=runs.ENGINE))


@pytest.fixture(scope='session')
def guaranteed(once) -> runs.Finished:
  """A run of the true command line to its end, with a guarantee."""

  def make(folder):
    arguments = [*starts.COMMAND, *runs.GUARANTEED, f'--output_dir={folder}']
    # Shares no memory with the forks.
    done = subprocess.run(arguments, cwd=starts.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr

  return once('guaranteed', make)
