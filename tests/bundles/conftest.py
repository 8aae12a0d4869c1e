import shutil
from typing import NamedTuple

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import publishing
from fl_dpftrl.replaying import embedded
from tests.bundles import bundles


@pytest.fixture(scope='module', autouse=True)
def fixture_one_thread():
  """Counts a small log without waiting for threads."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(embedded, '_threads', lambda: 1)
    yield


class Written(NamedTuple):
  """Folder of a log with its `bundle` and `public` form, and both results."""

  folder: object
  bundle: dpftrl.Bundle
  public: publishing.PublicBundle


@pytest.fixture(scope='module', name='written')
def fixture_written(tmp_path_factory):
  folder = tmp_path_factory.mktemp('run')
  run = dpftrl.open_run(
    bundles.write_log(folder / 'log.parquet'),
    bundles.STRATEGY,
    declared_num_rounds=30,
    declared_min_sep=6,
  )
  bundle = dpftrl.write_bundle(folder / 'bundle', run, deltas=[1e-6, 1e-9])
  public = dpftrl.write_public_bundle(folder / 'public', folder / 'bundle', salt=bundles.SALT)
  return Written(folder, bundle, public)


@pytest.fixture(name='bundle')
def fixture_bundle(written, tmp_path):
  return shutil.copytree(written.folder / 'bundle', tmp_path / 'bundle')


@pytest.fixture(name='public')
def fixture_public(written, tmp_path):
  return shutil.copytree(written.folder / 'public', tmp_path / 'public')


@pytest.fixture(name='either', params=['bundle', 'public'])
def fixture_either(request):
  """A bundle with logs, and one without."""
  return request.getfixturevalue(request.param)
