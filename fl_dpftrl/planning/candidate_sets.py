"""Candidates of a comparison or a plan: mechanisms to optimise, and fixed strategies."""

import dataclasses
import difflib
import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, workloads
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.search import optimizers
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.planning import optimization
from fl_dpftrl.support.text import messages

# Mechanisms and strategies, or labels of these.
Names: TypeAlias = (
  str | base.Strategy | Sequence[str | base.Strategy] | Mapping[str, str | base.Strategy]
)
# Progress callback of optimisers: called with the number of steps and the loss.
Progress = Callable[[int, float], None]
# Called with what is searched when a search starts; returns its callback.
Watch = Callable[[str], Progress]

# Exceptions of an optimiser or an evaluation for unsupported settings.
UNSUPPORTED = (ValueError, MemoryError, np.linalg.LinAlgError)
LOWER_BOUND = 'only a lower bound of its sensitivity is known'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """Mechanism to optimise, or a fixed strategy.

  Attributes:
    find: takes a schema and the keywords objective, workload and progress.
    find_range: takes several schemas, of which one will hold, and the same keywords; None if not
      supported.
    optimised: True if `find` searches for the best strategy.
    size: keyword of its size, such as num_bands; None if there is none.
    has_size: whether its label fixes the size, as in blt:3.
    workload: workload of its strategy file; None if it has none.
  """

  label: str
  mechanism: str
  find: Callable[..., base.Strategy]
  find_range: Callable[..., base.Strategy] | None = None
  optimised: bool = False
  size: str | None = None
  has_size: bool = False
  workload: workloads.Workload | None = None


class Skipped(NamedTuple):
  """Candidate that could not be evaluated for a schema, with the reason; kind of participation."""

  label: str
  reason: str
  schema: schemas.Schema
  kind: str = separations.MinSep.kind


def named(names: Names) -> list[Candidate]:
  """Returns candidates by their names, and those of strategies; see `compare`."""
  if isinstance(names, Mapping):
    candidates = [dataclasses.replace(_named(n), label=_label(text)) for text, n in names.items()]
  else:
    several = [names] if isinstance(names, str | base.Strategy) else names
    candidates = [_named(name) for name in several]
  labels = [candidate.label for candidate in candidates]
  for label in labels:
    if labels.count(label) > 1:
      raise ValueError(
        f'two of them are called {label!r}: name one with label=file, or give a mapping from labels'
      )
  return candidates


def _label(text: Any) -> str:
  if not isinstance(text, str) or not text:
    raise ValueError(f'a label of mechanisms must be text, got {messages.quoted(text)}')
  return text


def watched(say: Callable[[str], None]) -> Watch:
  """Returns a watch that says what is searched, and its steps, in words."""

  def begin(searched: str) -> Progress:
    say(searched)
    return lambda steps, loss: say(f'{searched}: {steps} steps, loss {loss:.6g}')

  return begin


def reason(raised: BaseException) -> str:
  """Returns an exception's message without line breaks."""
  return ' '.join(str(raised).split()) or type(raised).__name__


def _named(name: str | base.Strategy) -> Candidate:
  if not isinstance(name, str):
    return _fixed(files.resolved(name), name.family)
  mechanism, colon, size = name.partition(':')
  optimizer = optimizers.find_optimizer(mechanism)
  if optimizer is None:
    return _loaded(name)
  find: Callable[..., base.Strategy] = functools.partial(optimization.optimize, mechanism)
  if colon:
    find = functools.partial(find, **_size(name, optimizer, size))
  return Candidate(
    label=name,
    mechanism=mechanism,
    find=find,
    find_range=find if optimizer.find_range else None,
    optimised=mechanism not in files.parameter_free(),
    size=optimizer.size,
    has_size=bool(colon),
  )


def labelled(name: str) -> tuple[str, str]:
  """Returns the label and the rest of label=file; an empty label where there is none."""
  label, equals, path = name.partition('=')
  return ('', name) if not (equals and label) or os.path.isfile(name) else (label, path)


def _loaded(name: str) -> Candidate:
  label, path = labelled(name)
  if path in files.parameter_free():
    strategy, workload, default_label = files.load_strategy(path), None, path
  else:
    try:
      file = files.load(path)
    except ValueError as e:
      if os.path.isfile(path):
        raise
      optimizers.check_family(path)
      near = difflib.get_close_matches(path, (*optimizers.OPTIMIZERS, *files.names()))
      raise ValueError(
        f'{messages.quoted(path)} is no strategy file, no name in matrices/ and no mechanism:'
        + (
          f' did you mean {" or ".join(near)}?'
          if near
          else f' {", ".join(optimizers.OPTIMIZERS)}, or one of a module to --import'
        )
      ) from e
    strategy, workload = file.strategy, file.workload
    default_label = path if path in files.names() else pathlib.Path(path).stem
  return _fixed(strategy, label or default_label, workload)


def _fixed(
  strategy: base.Strategy, label: str, workload: workloads.Workload | None = None
) -> Candidate:
  """Returns the candidate of a strategy as it is."""
  find = lambda schema, **kwargs: strategy
  return Candidate(label=label, mechanism=strategy.family, find=find, workload=workload)


def _size(name: str, optimizer: optimizers.Optimizer, size: str) -> dict[str, int]:
  if optimizer.size is None:
    raise ValueError(f'{name!r}: this mechanism takes no size')
  if not (size.isascii() and size.isdigit()):
    raise ValueError(f'{name!r}: the {optimizer.size} after the colon must be a whole number')
  return {optimizer.size: int(size)}
