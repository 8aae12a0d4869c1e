"""A strategy of every family, and of further forms of some, for any number of rounds."""

import functools

import pytest

from tests import every_family


@pytest.fixture(params=every_family.NAMES)
def example(request):
  """num_rounds → a strategy."""
  return functools.partial(every_family.example, request.param)
