"""A strategy of every family, for any number of rounds."""

import functools

import pytest

from tests import every_family


@pytest.fixture(params=every_family.FAMILIES)
def example(request):
  """num_rounds → a strategy."""
  return functools.partial(every_family.example, request.param)
