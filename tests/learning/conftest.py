import pytest


@pytest.fixture(scope='session')
def worker():
  from fl_dpftrl.learning import workers

  local_worker = workers.use_local_worker()
  yield local_worker
  local_worker.stop()
