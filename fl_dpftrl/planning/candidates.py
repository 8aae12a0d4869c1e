"""Candidates of a comparison: mechanisms to optimise, and fixed strategies."""

import dataclasses
import difflib
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

from fl_dpftrl import workloads
from fl_dpftrl.families import base
from fl_dpftrl.optimization import registry
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages


@dataclasses.dataclass(frozen=True)
class Candidate:
  """Candidate of a comparison, which is one line of it.

  Attributes:
    label: name of the candidate.
    mechanism: mechanism or family of its strategies.
    find: takes a schema and the keywords objective, workload and progress.
    made_for: schema fields for which its strategy is found, if they differ from those at which
      it is evaluated.
    optimised: True if `find` searches for the best strategy.
    workload: workload of its strategy file; None if it has none.
    find_range: takes several schemas, of which one will hold, and the keywords over and those
      of `find`; None if not supported.
  """

  label: str
  mechanism: str
  find: Callable[..., base.Strategy]
  made_for: Mapping[str, int] = dataclasses.field(default_factory=dict)
  optimised: bool = False
  workload: workloads.Workload | None = None
  find_range: Callable[..., base.Strategy] | None = None

  def target(self, schema: schemas.MinSep) -> schemas.MinSep:
    """Returns the schema to find a strategy for if it is evaluated at `schema`."""
    return dataclasses.replace(schema, **self.made_for)


def named(names: Sequence[str], made_for: Sequence[Mapping[str, int]] = ({},)) -> list[Candidate]:
  """Returns candidates by their names.

  Args:
    names: names; each is a mechanism, a mechanism with its size (blt:3 or banded:64), a name in
      matrices/ or a strategy file, also as label=file.
    made_for: schema fields to optimise for; each mechanism that is optimised gives one
      candidate per entry. See `Candidate`.
  """
  candidates = []
  for name in names:
    mechanism, colon, size = name.partition(':')
    if mechanism not in registry.OPTIMIZERS:
      candidates.append(_given(name))
      continue
    optimizer = registry.OPTIMIZERS[mechanism]
    find: Callable[..., base.Strategy] = functools.partial(registry.optimize, mechanism)
    if colon:
      find = functools.partial(find, **_size(name, optimizer, size))
    fixed = mechanism in files.parameter_free()
    for fields in ({},) if fixed else made_for:
      candidates.append(
        Candidate(
          _label(name, fields),
          mechanism,
          find,
          fields,
          optimised=not fixed,
          find_range=find if optimizer.find_range else None,
        )
      )
  labels = [candidate.label for candidate in candidates]
  for label in labels:
    if labels.count(label) > 1:
      raise ValueError(f'two of them are called {label!r}; give a file another name with name=file')
  return candidates


def _given(name: str) -> Candidate:
  label, equals, path = name.partition('=')
  if not (equals and label) or os.path.isfile(name):
    label, path = '', name
  if path in files.parameter_free():
    strategy = files.load_strategy(path)
    return Candidate(label or path, strategy.family, lambda schema, **kwargs: strategy)
  try:
    file = files.load(path)
  except ValueError as e:
    if os.path.isfile(path):
      raise
    registry.check_family(path)
    names = (*registry.OPTIMIZERS, *files.names())
    near = difflib.get_close_matches(path, names)
    raise ValueError(
      f'{messages.quoted(path)} is neither a strategy file nor a mechanism or strategy;'
      + (f' did you mean {" or ".join(near)}?' if near else f' choose from {", ".join(names)}')
    ) from e
  return Candidate(
    label or (path if path in files.names() else pathlib.Path(path).stem),
    file.strategy.family,
    lambda schema, **kwargs: file.strategy,
    workload=file.workload,
  )


def _size(name: str, optimizer: registry.Optimizer, size: str) -> dict[str, int]:
  if optimizer.size is None:
    raise ValueError(f'{name!r}: this mechanism takes no size')
  if not (size.isascii() and size.isdigit()):
    raise ValueError(f'{name!r}: the {optimizer.size} after the colon must be a whole number')
  return {optimizer.size: int(size)}


def _label(name: str, made_for: Mapping[str, int]) -> str:
  if not made_for:
    return name
  fields = ', '.join(f'{field}={value}' for field, value in made_for.items())
  return f'{name} for {fields}'
