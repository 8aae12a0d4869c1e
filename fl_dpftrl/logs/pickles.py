"""Pickles of plain values as JSON.

Only `reader_program` reads pickles of untrusted origin: see `reader`. Python's reader can crash
on them, loop or take all memory, which ends that program alone. Whoever asked for the values
gets JSON, which has neither shared parts nor cycles.
"""

import json
import pickle
from typing import Any, BinaryIO, NoReturn

from fl_dpftrl.logs import limits, refusals
from fl_dpftrl.text import messages


def to_json(path: str, file: BinaryIO) -> bytes:
  """Returns the first object of a pickle as JSON in ASCII.

  The object consists of dictionaries, lists, tuples, numbers, text and None. Tuples become
  lists. Keys, which are numbers, text or None, become text.

  Args:
    path: path of the file, for messages.
    file: the file, of which no more than the object is needed.

  Raises:
    LogError: if the pickle names or holds anything else, is incomplete, contains itself, is
      nested too deeply, or takes more than PLAIN_BYTES as JSON.
    MemoryError: if there is not the memory to read it.
  """
  try:
    value = _Unpickler(file).load()
  except MemoryError:
    raise
  except _NotPlainError as error:
    raise _not_plain(path, error) from None
  # Corrupt bytes can raise nearly any exception.
  except Exception:
    raise refusals.LogError(f'{path} is no pickle, or is not whole') from None
  try:
    content = json.dumps(value).encode()
  except (TypeError, ValueError, RecursionError) as error:
    raise _not_plain(path, error) from None
  if len(content) > limits.PLAIN_BYTES:
    raise refusals.LogError(
      f'{path} is too large to be read: its values take {len(content)} bytes as JSON, of which'
      f' {limits.PLAIN_BYTES} is the most there may be'
    )
  return content


def _not_plain(path: str, error: Exception) -> refusals.LogError:
  return refusals.LogError(
    f'{path} holds more than plain containers and numbers, and is not read: {error}'
  )


class _NotPlainError(Exception):
  pass


class _Unpickler(pickle.Unpickler):
  """Python's reader without any class or function.

  Whatever calls something (REDUCE, INST, OBJ, NEWOBJ, EXT1) first has to find it here.
  """

  def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
    raise _NotPlainError(f'it names {messages.quoted(f"{module_name:.80}.{global_name:.80}")}')

  def persistent_load(self, pid: Any) -> NoReturn:
    raise _NotPlainError('it refers to an object outside the file')
