"""Errors of client and server work, told without values that the work computed with.

Kernels of TensorFlow quote numbers, text and shapes in their messages, and so do functions that
read data. So an error is told by its type, its place and the operation or line that failed. Its
own words are printed by the process in which it arose, and only if that is asked for.
"""

import functools
import os
import re
import sys
import traceback
import warnings
from typing import Any

import tensorflow as tf

from tff_inprocess import graphs, messages

_ASK = '(show_client_errors prints why)'
# Nodes of which a message tells, with their functions; the one that failed comes first.
_NODES = re.compile(r'\[\[(?:\{\{function_node ([^}]*)\}\})?(?:\{\{node )?([^\]{}]+)')
# TensorFlow's own log quotes messages of kernels from this level down.
_LEVEL, _SILENT = 'TF_CPP_MIN_LOG_LEVEL', 3


def of_operation(
  error: Exception, graph: tf.Graph, *, place: str = '', show: bool = False
) -> Exception:
  """Returns an error of a graph's run that names its type, operation and node alone."""
  _show(error, place, show)
  said = _placed(_told(getattr(error, 'message', ''), graph), place)
  return _saying(error, said)


def of_function(error: Exception, *, place: str, show: bool = False) -> Exception:
  """Returns an error of a client's data that names its type and the line that raised it alone."""
  _show(error, place, show)
  last = traceback.extract_tb(error.__traceback__)[-1]
  line = f'{os.path.basename(last.filename)}:{last.lineno}'
  said = _placed(f'{type(error).__name__} at {line}, in {last.name} {_ASK}', place)
  return _saying(error, said)


def at(error: Exception, place: str) -> Exception:
  """Returns an error whose words may be told, with a place before them."""
  return type(error)(_placed(str(error), place))


def warn_of_log() -> None:
  """Warns once unless TensorFlow's log, which quotes messages of kernels, is silent."""
  level = os.environ.get(_LEVEL, '0')
  if not (level.isdigit() and int(level) >= _SILENT):
    _warn()


def _placed(words: str, place: str) -> str:
  return f'{place}: {words}' if place else words


def _told(message: str, graph: tf.Graph) -> str:
  """Returns what the graph says of the first of a message's nodes that it has."""
  definition = graph.as_graph_def()
  functions = {one.signature.name: one.node_def for one in definition.library.function}
  for function, name in _NODES.findall(message):
    body = functions.get(function, definition.node)
    for node in (node for node in body if node.name == name):
      where = f'node {messages.one_line(name, 100)}'
      if node.op == 'Assert':
        return f'assertion failed: [{_words(node, body) or "..."}], {where}'
      own = graphs.last_error(node)
      return f'operation {node.op} failed, {where} {_ASK}' if own is None else own
  return f'an operation failed {_ASK}'


def _words(assertion: Any, body: Any) -> str:
  """Returns the first words of an assertion that are a constant."""
  constants = {node.name: node for node in body if node.op == 'Const'}
  for name in assertion.input[1:]:
    constant = constants.get(graphs.node_of(name))
    if constant is not None and constant.attr['dtype'].type == tf.string.as_datatype_enum:
      if words := b' '.join(tf.make_ndarray(constant.attr['value'].tensor).reshape(-1)):
        return messages.one_line(words.decode(errors='replace'))
  return ''


def _saying(error: Exception, said: str) -> Exception:
  """Returns a new error of the same type, or of the nearest that a message alone makes."""
  if isinstance(error, tf.errors.OpError):
    return type(error)(None, None, said)
  for of in type(error).__mro__:
    if of.__module__ == 'builtins':
      try:
        return of(said)
      except TypeError:  # Such as a UnicodeDecodeError, which has the data.
        continue
  raise AssertionError(type(error))


def _show(error: Exception, place: str, show: bool) -> None:
  if show:
    print(_placed(''.join(traceback.format_exception(error)), place), file=sys.stderr, flush=True)


@functools.cache
def _warn() -> None:
  warnings.warn(
    "TensorFlow's log on stderr may quote clients' values: set TF_CPP_MIN_LOG_LEVEL=3 in the"
    ' environment before TensorFlow is imported',
    RuntimeWarning,
    stacklevel=3,
  )
