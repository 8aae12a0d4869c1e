import pytest


@pytest.fixture(scope='session')
def in_process():
  """Makes TFF's computations run in process."""
  from fl_dpftrl import runtime

  return runtime.use_in_process()
