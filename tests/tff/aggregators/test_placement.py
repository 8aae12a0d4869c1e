import numpy as np
import pytest
import tensorflow_federated as tff

from fl_dpftrl.mechanisms.families import banded, blt, identity
from fl_dpftrl.tff.aggregators import placement

pytestmark = pytest.mark.tff

STACKOVERFLOW = 4 * 4_050_748


def bands(num_bands, num_rounds=400):
  coefficients = np.zeros((num_rounds, num_bands))
  coefficients[:, 0] = 1.0
  return banded.Banded(coefficients)


class Elsewhere(tff.framework.SyncContext):
  def invoke(self, comp, arg):
    raise NotImplementedError


@pytest.fixture
def by_worker():
  with tff.framework.get_context_stack().install(Elsewhere()):
    yield


@pytest.fixture
def free(monkeypatch):
  """Sets the memory that is free, in process."""
  return lambda value: monkeypatch.setattr(placement.machine, 'free_memory', lambda: value)


def refusal(*arguments):
  with pytest.raises(ValueError) as error:
    placement.choose(*arguments)
  message = str(error.value)
  assert len(message) <= 300 and '\n' not in message
  return message


def test_what_a_worker_cannot_carry_is_refused_with_what_would_do(by_worker):
  message = refusal(bands(342), STACKOVERFLOW)
  assert 'banded keeps 682 times the 16.2 MB of a model as noise state' in message
  assert 'tff_inprocess.use()' in message
  assert 'at most 692,419 parameters or a strategy of at most 56 buffers' in message
  # What it says would fit does, and one more does not.
  placement.choose(bands(342), 4 * 692_419)
  placement.choose(bands(57), STACKOVERFLOW)
  for strategy, num_parameters in ((342, 692_420), (58, 4_050_748)):
    refusal(bands(strategy), 4 * num_parameters)
  assert refusal(identity.Identity(), 2_000_000_000).endswith('118,750,000 parameters')


def test_in_process_an_engine_keeps_the_noise_unless_state_is_asked_for(free):
  needed = (4 * 682 + 28) * STACKOVERFLOW
  free(0)
  for asked in ('auto', 'engine'):
    assert placement.choose(bands(342), STACKOVERFLOW, asked) == 'engine'
  free(needed)
  assert placement.choose(bands(342), STACKOVERFLOW, 'state') == 'state'
  free(needed - 1)
  message = refusal(bands(342), STACKOVERFLOW, 'state')
  assert 'rounds need 44.7 GB, and 44.7 GB are free' in message
  assert "memory='engine'" in message
  assert 'at most 4,050,747 parameters or a strategy of at most 340 buffers' in message
  free(None)
  assert placement.choose(bands(342), STACKOVERFLOW, 'state') == 'state'


def test_buffers_that_do_not_fit_are_mapped(free):
  buffers = 8 * 2 * 4000
  for known, expected in ((2 * buffers, True), (2 * buffers - 1, False), (None, True)):
    free(known)
    assert placement.fits_memory(blt.BLT((0.9, 0.5), (0.1, 0.1)), 4000) == expected
