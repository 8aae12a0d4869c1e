"""Lets TensorFlow Federated 0.87 run beside current packages.

`make env` has its Python import this module at each start, so before TensorFlow.
"""

import atexit
import importlib.machinery
import os
import sys

# Packages that TFF imports but that neither it nor this project uses, with what they lack. The last
# two lack nothing, and take a sixth of TFF's start: they import Keras 3, Matplotlib, scikit-learn.
STUBS = {
  'tensorflow_federated.python.core.environments.jax_frontend': 'JAX before 0.5 (xla_client)',
  'tensorflow_privacy.privacy.estimators': 'TensorFlow before 2.16 (estimators)',
  'tensorflow_model_optimization.python.core.sparsity': 'Python without tff_compatibility',
  'tensorflow_privacy.privacy.logistic_regression': 'Python without tff_compatibility',
}

# TFF calls Keras 2, which is the package tf_keras since TensorFlow 2.16.
os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')


class _Stubs:
  """Finder and loader of an empty module for each name in STUBS and below it."""

  def find_spec(self, name, path=None, target=None):
    if _missing_for(name):
      return importlib.machinery.ModuleSpec(name, self, is_package=True)
    return None

  def create_module(self, spec):
    return None

  def exec_module(self, module):
    def attribute(name):
      if name.startswith('__'):
        raise AttributeError(name)

      def refuse(*args, **kwargs):
        raise NotImplementedError(f'{name} needs {_missing_for(module.__name__)}')

      return refuse

    module.__getattr__ = attribute


def _missing_for(name):
  return next((lacks for stub, lacks in STUBS.items() if f'{name}.'.startswith(f'{stub}.')), None)


def end_worker():
  """Drops TFF's context, which ends its worker; Python 3.13 cannot once modules are gone."""
  stack = sys.modules.get('tensorflow_federated.python.core.impl.context_stack.context_stack_impl')
  if stack:
    stack.context_stack._stack.clear()


sys.meta_path.insert(0, _Stubs())
atexit.register(end_worker)
