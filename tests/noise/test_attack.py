"""The attack on sums of floats, as the example runs it."""

import runpy

import numpy as np
import pytest

from fl_dpftrl.noise import normals
from tests import pages


@pytest.mark.slow
def test_floats_tell_who_took_part_and_integers_do_not():
  attack = runpy.run_path(str(pages.DOCS.parent / 'examples' / 'attack.py'))
  size = attack['SIZE']
  target, nothing = np.full(size, 0.999 / np.sqrt(size)), np.zeros(size)
  rng, made = np.random.default_rng(1), normals.Normals(bytes(32))
  count = attack['off_the_grid']
  assert max(count(attack['float_rounds'](target, rng))) == 0
  assert min(count(attack['float_rounds'](nothing, rng))) > 10
  present, absent = (
    np.array(count(attack['integer_rounds'](values, made))) for values in (target, nothing)
  )
  # Poisson counts: their difference is within four standard deviations.
  assert abs(present.sum() - absent.sum()) < 4.0 * np.sqrt(present.sum() + absent.sum())
