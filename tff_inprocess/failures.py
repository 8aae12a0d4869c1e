"""Errors of client and server work, told without values that the work computed with.

Kernels of TensorFlow quote numbers, text and shapes in their messages, and so do functions that
read data. A computation may choose by a value which node, constant words, line or class is told. So
an error is told by its type in TensorFlow or Python, its place, and the operation or function that
failed. Its own words are printed by the process in which it arose, and only if that is asked for.
"""

import functools
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable

import tensorflow as tf

from tff_inprocess import graphs

_PACKAGE = f'{__package__}.'
_ASK = '(show_client_errors prints why)'
# Nodes of which a message tells, with their functions; the one that failed comes first.
_NODES = re.compile(r'\[\[(?:\{\{function_node ([^}]*)\}\})?(?:\{\{node )?([^\]{}]+)')
_told: set[str] = set()
# TensorFlow's own log quotes messages of kernels from this level down.
_LEVEL, _SILENT = 'TF_CPP_MIN_LOG_LEVEL', 3


def told(words: str) -> str:
  """Returns words of a server's assertion, which are then told: they must depend on no data."""
  _told.add(words)
  return words


def of_operation(
  error: Exception, graph: tf.Graph, *, place: str = '', show: bool = False
) -> Exception:
  """Returns an error of a graph's run that names only its type, place and operation."""
  _show(error, place, show)
  where = f'of the {"client " if place else ""}computation failed {_ASK}'
  return _saying(error, _placed(_operation(getattr(error, 'message', ''), graph, where), place))


def of_function(error: Exception, *, place: str, show: bool = False) -> Exception:
  """Returns an error of a client's data that names only its type and the function that makes them.

  That is the first outside of this package, with its first line: the line that raised may depend
  on the data.
  """
  _show(error, place, show)
  where = ''
  for frame, _ in traceback.walk_tb(error.__traceback__):
    if frame.f_globals.get('__name__', '').startswith(_PACKAGE):
      where = ''  # What was before is of whoever runs an actor.
    elif not where:
      code = frame.f_code
      where = f' in {code.co_name}, {os.path.basename(code.co_filename)}:{code.co_firstlineno}'
  kind = type(_saying(error, '')).__name__
  return _saying(error, _placed(f'{kind}{where} {_ASK}', place))


def at(error: Exception, place: str) -> Exception:
  """Returns an error whose words may be told, with a place before them."""
  return type(error)(_placed(getattr(error, 'words', str(error)), place))


def warn_of_log() -> None:
  """Warns once unless TensorFlow's log, which quotes messages of kernels, is silent."""
  level = os.environ.get(_LEVEL, '0')
  if not (level.isdigit() and int(level) >= _SILENT):
    _warn()


def _placed(words: str, place: str) -> str:
  return f'{place}: {words}' if place else words


def _operation(message: str, graph: tf.Graph, where: str) -> str:
  """Returns the operation of the first of a message's nodes that the graph has."""
  definition = graph.as_graph_def()
  functions = {one.signature.name: one.node_def for one in definition.library.function}
  for function, name in _NODES.findall(message):
    body = functions.get(function, definition.node)
    for node in (node for node in body if node.name == name):
      is_function = not hasattr(tf.raw_ops, node.op)  # By a name that the graph's author chose.
      named = 'a function' if is_function else f'operation {node.op}'
      words = '' if 'client computation' in where else _words(node, body)
      return words or graphs.last_error(node) or f'{named} {where}'
  return f'an operation {where}'


def _words(node: tf.compat.v1.NodeDef, body: Iterable[tf.compat.v1.NodeDef]) -> str:
  """Returns the words of an assertion that may be told; none of any other."""
  inputs = {name.partition(':')[0] for name in node.input} if node.op == 'Assert' else set()
  for constant in (other for other in body if other.name in inputs and other.op == 'Const'):
    for text in tf.make_ndarray(constant.attr['value'].tensor).ravel().tolist():
      if isinstance(text, bytes) and (words := text.decode('utf-8', 'replace')) in _told:
        return words
  return ''


def _saying(error: Exception, said: str) -> Exception:
  """Returns a new error of the nearest type of TensorFlow or Python that needs only a message."""
  for of in type(error).__mro__:
    if issubclass(of, tf.errors.OpError) and of.__module__.startswith('tensorflow.'):
      return of(None, None, said)
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
