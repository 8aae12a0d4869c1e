"""Programs are compiled without optimisation here: they are small, and compiling takes longest."""

import jax
import pytest


@pytest.fixture(autouse=True, scope='session')
def fixture_compiles_fast():
  level = jax.config.jax_optimization_level
  jax.config.update('jax_optimization_level', 'O0')
  jax.config.update('jax_disable_most_optimizations', True)
  yield
  jax.config.update('jax_optimization_level', level)
  jax.config.update('jax_disable_most_optimizations', False)
