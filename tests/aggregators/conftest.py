import pytest

from fl_dpftrl.learning import workers


@pytest.fixture(scope='session', autouse=True)
def worker():
  local_worker = workers.use_local_worker()
  yield
  local_worker.stop()
