"""Pickles of plain containers, numbers and text, and of nothing that runs."""

import io
import os
import pickle
import reprlib


def load(path: str | os.PathLike[str], content: bytes) -> object:
  """The first object of a pickle, which may name no class and no function.

  Whatever a pickle does beyond building lists, tuples, sets, dictionaries,
  numbers, text and bytes begins by looking up a name; every such look-up is
  refused, so nothing of the file is run.

  Args:
    path: of the file, for messages.
    content: its bytes.

  Raises:
    ValueError: for a pickle that names anything or is not whole.
  """
  try:
    return _Plain(io.BytesIO(content)).load()
  except _NotPlainError as error:
    raise ValueError(
        f'{path} holds more than plain containers and numbers, and is not'
        f' read: {error}'
    ) from None
  # Broken bytes can end in nearly any exception.
  except Exception:
    raise ValueError(f'{path} is no pickle, or is not whole') from None


class _NotPlainError(Exception):
  pass


class _Plain(pickle.Unpickler):

  def find_class(self, module_name, global_name):
    name = reprlib.repr(f'{module_name}.{global_name}')
    raise _NotPlainError(f'it names {name}')

  def persistent_load(self, pid):
    del pid
    raise _NotPlainError('it refers to an object outside the file')
