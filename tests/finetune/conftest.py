"""Programs are compiled without optimisation here: they are small, and compiling takes longest."""

import jax
import pytest

QUICK = {'jax_optimization_level': 'O0', 'jax_disable_most_optimizations': True}


@pytest.fixture(autouse=True, scope='session')
def fixture_compiles_fast():
  before = {name: getattr(jax.config, name) for name in QUICK}
  for name, value in QUICK.items():
    jax.config.update(name, value)
  yield
  for name, value in before.items():
    jax.config.update(name, value)
