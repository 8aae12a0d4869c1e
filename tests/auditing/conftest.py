import functools

import pytest

from fl_dpftrl.accounting import gaussian


@pytest.fixture(autouse=True, scope='session')
def accounted_once():
  """Many audits have the same claim, whose privacy loss distribution takes long."""
  patch = pytest.MonkeyPatch()
  patch.setattr(gaussian, 'epsilon', functools.cache(gaussian.epsilon))
  yield
  patch.undo()
