import pytest


@pytest.fixture(scope='session')
def in_process():
  """Makes TFF's computations run in process."""
  import tff_inprocess

  return tff_inprocess.use()
