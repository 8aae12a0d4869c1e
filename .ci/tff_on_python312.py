"""Lets TensorFlow Federated 0.87 be imported on Python 3.12, with TensorFlow 2.17.

`make env` installs this file where Python 3.12 runs it at each start; other versions of
Python never see it. It changes two things, both before TensorFlow is imported:

- TensorFlow has had no estimators since 2.16, but TensorFlow Privacy 0.9, which TFF imports,
  derives classes from them. `tensorflow_estimator` is replaced by a stub. It has any module
  and any class that is asked for; no class can be instantiated. TFF and this package use none.
- TFF calls Keras 2, which is the package `tf_keras` since TensorFlow 2.16.
"""

import importlib.machinery
import os
import sys

_STUB = 'tensorflow_estimator'


class _Absent:
  """The stub of every class of an estimator."""

  def __init__(self, *args, **kwargs):
    raise NotImplementedError('TensorFlow has no estimators since 2.16: use Python 3.11')


class _Stubs:
  """Finder and loader of the stub and of all modules in it."""

  def find_spec(self, name, path=None, target=None):
    if name.partition('.')[0] != _STUB:
      return None
    return importlib.machinery.ModuleSpec(name, self, is_package=True)

  def create_module(self, spec):
    return None

  def exec_module(self, module):
    def absent(name):
      if name.startswith('__') or (name.islower() and name[0] != '_'):
        raise AttributeError(name)  # As of a module, which is then imported.
      return _Absent

    module.__getattr__ = absent


os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')
sys.meta_path.append(_Stubs())  # Last, so that an installed package goes before it.
