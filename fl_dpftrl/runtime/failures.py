"""Errors of TensorFlow, as users are told them."""

import re

import tensorflow as tf

# The function of an operation that failed, whose name says nothing to users.
_FUNCTION = re.compile(r'\{\{function_node [^}]*\}\} ?')
# The sentence of an assertion, which TensorFlow puts between lines on its graph.
_ASSERTED = re.compile(r'assertion failed: \[[^\]]+\]')


def plain(error: tf.errors.OpError) -> tf.errors.OpError:
  """Returns an error in its own words alone; of an assertion, in its sentence."""
  said = _ASSERTED.search(error.message)
  return _saying(error, _FUNCTION.sub('', error.message) if said is None else said[0])


def placed(error: BaseException, place: str) -> BaseException:
  """Returns an error of the same type whose message begins with a place."""
  if isinstance(error, tf.errors.OpError):
    return _saying(error, f'{place}: {error.message}')
  if error.args and isinstance(error.args[0], str):
    error.args = f'{place}: {error.args[0]}', *error.args[1:]
  return error


def _saying(error: tf.errors.OpError, message: str) -> tf.errors.OpError:
  return type(error)(error.node_def, error.op, message).with_traceback(error.__traceback__)
