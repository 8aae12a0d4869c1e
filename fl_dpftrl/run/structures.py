"""Nested structures of arrays: what updates are made of, in NumPy, PyTorch or JAX."""

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from fl_dpftrl.support.text import messages

_TYPES = (np.dtype(np.float32), np.dtype(np.float64))


@dataclasses.dataclass(frozen=True, eq=False)
class Template:
  """Structure, shapes and types of the updates of a run.

  Attributes:
    names: place of each array in the structure, such as "['dense']['bias']".
    shapes: shape of each array.
    dtypes: type of each array, float32 or float64.
  """

  names: tuple[str, ...]
  shapes: tuple[tuple[int, ...], ...]
  dtypes: tuple[np.dtype, ...]
  _structure: Any = dataclasses.field(repr=False)

  @classmethod
  def of(cls, structure: Any) -> 'Template':
    """Returns the template of a nested structure of arrays, such as a model's parameters."""
    named = list(_leaves(structure, structure, ''))
    arrays = [_array(leaf, f'template{name}') for name, leaf in named]
    for (name, _), array in zip(named, arrays):
      if array.dtype not in _TYPES:
        raise ValueError(f'template{name} must be float32 or float64, got {array.dtype}')
    # Only shapes: the parameters themselves may be freed.
    outline = _mapped(structure, lambda leaf: None)
    names, shapes = tuple(name for name, _ in named), tuple(array.shape for array in arrays)
    result = cls(names, shapes, tuple(array.dtype for array in arrays), outline)
    if not result.size:
      raise ValueError('template must hold at least one coordinate')
    return result

  @functools.cached_property
  def sizes(self) -> tuple[int, ...]:
    """Number of coordinates of each array."""
    return tuple(map(math.prod, self.shapes))

  @functools.cached_property
  def size(self) -> int:
    """Number of coordinates of an update."""
    return sum(self.sizes)

  def empty(self) -> Any:
    """Returns a structure of empty arrays of NumPy."""
    return _mapped(self._structure, lambda _: np.empty(0))

  def flat(self, updates: Any, *, is_batch: bool = False) -> list[np.ndarray]:
    """Returns the arrays of updates, each of shape [updates, coordinates].

    They are copied only if they must be.

    Args:
      updates: an update, or a batch of them, whose arrays have a leading axis.
      is_batch: whether it is a batch.
    """
    leaves, leading, result = self.leaves(updates), (), []
    if is_batch:
      leading = np.shape(leaves[0])[:1]
      if not leading:
        raise ValueError(f'update{self.names[0]} of a batch must have a leading axis of updates')
    for name, own, dtype, leaf in zip(self.names, self.shapes, self.dtypes, leaves, strict=True):
      array, shape = _array(leaf, f'update{name}'), (*leading, *own)
      if array.dtype != dtype or array.shape != shape:
        raise ValueError(
          f'update{name} must be {dtype} of shape {list(shape)}, as in the template; got'
          f' {array.dtype} of shape {list(array.shape)}'
        )
      result.append(array.reshape(*(leading or (1,)), math.prod(own)))
    return result

  def leaves(self, update: Any) -> list[Any]:
    """Returns the arrays of an update in order; ValueError for another structure."""
    return [leaf for _, leaf in _leaves(self._structure, update, '')]

  def packed(self, values: np.ndarray, like: Any) -> Any:
    """Returns a vector of all coordinates in the structure, and of the kind, of an update."""
    leaves = self.leaves(like)
    parts = iter(np.split(values, np.cumsum(self.sizes)[:-1]))
    shaped = (
      _of_kind(leaf, part.reshape(shape).astype(dtype, copy=False))
      for leaf, part, shape, dtype in zip(leaves, parts, self.shapes, self.dtypes, strict=True)
    )
    return _mapped(self._structure, lambda _: next(shaped))


def _mapped(structure: Any, make: Callable[[Any], Any]) -> Any:
  """Returns a structure with each leaf replaced, in order."""
  if isinstance(structure, Mapping):
    kind: Any = type(structure)
    mapped = {key: _mapped(structure[key], make) for key in structure}
    with contextlib.suppress(TypeError):  # A kind that takes no dictionary becomes one.
      return kind(mapped)
    return mapped
  if isinstance(structure, tuple) and hasattr(structure, '_fields'):
    return type(structure)(*(_mapped(part, make) for part in structure))
  if isinstance(structure, (list, tuple)):
    return type(structure)(_mapped(part, make) for part in structure)
  return make(structure)


def _leaves(structure: Any, update: Any, name: str) -> Iterator[tuple[str, Any]]:
  """Yields each leaf of an update with its place, in the order of a structure."""
  if isinstance(structure, Mapping):
    if not isinstance(update, Mapping) or set(update) != set(structure):
      got = sorted(map(repr, update)) if isinstance(update, Mapping) else messages.kind(update)
      raise ValueError(
        f'update{name} must be a mapping of {_listed(map(repr, structure))}, as in the template;'
        f' got {got if isinstance(got, str) else _listed(got)}'
      )
    for key in structure:
      yield from _leaves(structure[key], update[key], f'{name}[{key!r}]')
  elif isinstance(structure, (list, tuple)):
    if not isinstance(update, (list, tuple)) or len(update) != len(structure):
      got = f'{len(update)}' if isinstance(update, (list, tuple)) else messages.kind(update)
      raise ValueError(
        f'update{name} must be a list or tuple of {len(structure)}, as in the template; got {got}'
      )
    for index, part in enumerate(structure):
      yield from _leaves(part, update[index], f'{name}[{index}]')
  else:
    yield name, update


def _listed(names: Any) -> str:
  names = list(names)
  return ', '.join(names[:5]) + (f' and {len(names) - 5} more' if len(names) > 5 else '')


def _array(leaf: Any, name: str) -> np.ndarray:
  """Returns a leaf as an array of NumPy."""
  if isinstance(leaf, np.ma.MaskedArray):  # What is behind a mask would be summed, but not bounded.
    raise ValueError(f'{name} must have no mask: say what stands in its place with numpy.ma.filled')
  if isinstance(leaf, np.ndarray):
    return np.asarray(leaf)
  if _is_torch(leaf):
    try:
      return leaf.detach().cpu().numpy()
    except TypeError:  # A type that NumPy lacks, such as bfloat16.
      raise ValueError(f'{name} must be float32 or float64, got {leaf.dtype}') from None
  if hasattr(leaf, '__array__') and hasattr(leaf, 'dtype') and hasattr(leaf, 'shape'):
    return np.asarray(leaf)
  raise ValueError(
    f'{name} must be an array of NumPy, PyTorch or JAX, or a dictionary, list or tuple of them, got'
    f' {messages.kind(leaf)}'
  )


def _is_torch(leaf: Any) -> bool:
  torch = sys.modules.get('torch')
  return torch is not None and isinstance(leaf, torch.Tensor)


def _of_kind(leaf: Any, values: np.ndarray) -> Any:
  """Returns values as an array of the same library, and on the same device, as a leaf."""
  if _is_torch(leaf):
    return sys.modules['torch'].from_numpy(values).to(leaf.device)
  jax = sys.modules.get('jax')
  if jax is not None and isinstance(leaf, jax.Array):
    return jax.numpy.asarray(values)
  return values
