"""Strategy files, whose stored figures are recomputed and checked on loading.

A strategy file is JSON, format version 1. Arrays are in an ``.npz`` beside it. The file names
it, and its name is derived from its content, so that no other writer of the same file can
change its arrays. Loading computes sensitivity, errors and losses anew and rejects a file whose
stored figures differ.
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import pathlib
import re
from typing import Any, TypeAlias

import numpy as np

from fl_dpftrl.mechanisms import (
  base,
  family_registry,
  schemas,
  sensitivities,
  undoing,
  workload_error,
  workloads,
)
from fl_dpftrl.mechanisms.files import documents as strategy_document
from fl_dpftrl.support import checks, tables
from fl_dpftrl.support.files import durable, json_files, paths
from fl_dpftrl.support.text import messages
from fl_dpftrl.version import __version__

NAME = 'strategy.json'
"""Name of the strategy file in the folder of a run."""
FORMAT = 'fl_dpftrl.strategy'
VERSION = 1

# A strategy, its file, its name in matrices/, or the name of a parameter-free family.
Given: TypeAlias = base.Strategy | str | os.PathLike[str]
_RELATIVE_TOLERANCE = 1e-9
_DIGEST_LENGTH = 16  # hexadecimal digits in the name of an .npz


@dataclasses.dataclass(frozen=True)
class StrategyFile:
  """Strategy with the setting it was optimised for, and its figures there.

  Attributes:
    objective: 'rms' or 'max'; None if it was optimised for neither.
    sensitivity: sensitivity under `schema`.
    error: error of `workload` over the rounds of `schema`.
    version: release that wrote the file.
  """

  strategy: base.Strategy
  schema: schemas.Schema
  objective: str | None
  workload: workloads.Workload
  sensitivity: sensitivities.Sensitivity
  error: workload_error.Error
  version: str

  @property
  def rms_loss(self) -> float:
    """Sensitivity × RMS error: standard deviation per unit of noise multiplier."""
    return self.sensitivity.value * self.error.rms

  @property
  def max_loss(self) -> float:
    """Sensitivity × error of the worst query."""
    return self.sensitivity.value * self.error.max

  @property
  def figures(self) -> json_files.Object:
    """Figures that a file stores and that loading computes anew."""
    return {
      'sensitivity': self.sensitivity.value,
      'sensitivity_kind': self.sensitivity.kind,
      'rms_error': self.error.rms,
      'max_error': self.error.max,
      'rms_loss': self.rms_loss,
      'max_loss': self.max_loss,
    }

  def __repr__(self) -> str:
    schema = self.schema
    shown = {
      'mechanism': self.strategy.family,
      'schema': f'{schema.name}({schema.num_rounds}, {schema.min_sep}, {schema.participations})',
      'workload': self.workload.name,
      'objective': self.objective,
      **self.figures,
    }
    return tables.at_a_prompt('StrategyFile', tables.table(shown).splitlines())


def describe(
  strategy: Given,
  schema: schemas.Schema,
  *,
  objective: str | None = None,
  workload: workloads.Workload = workloads.Workload(),
  version: str = __version__,
  sensitivity: sensitivities.Sensitivity | None = None,
) -> StrategyFile:
  """Returns a strategy with its figures, as a file would hold them.

  Args:
    sensitivity: that of a run without an end, of which the schema has a number of rounds.
  """
  if objective is not None:
    workload_error.check_objective(objective)
  schemas.check(schema)
  checks.instance(workloads.Workload, workload=workload)
  strategy = resolved(strategy, schema.num_rounds)
  return StrategyFile(
    strategy=strategy,
    schema=schema,
    objective=objective,
    workload=workload,
    sensitivity=sensitivity or sensitivities.sensitivity(strategy, schema),
    error=workload_error.error(strategy, schema.num_rounds, workload),
    version=version,
  )


@durable.letting_go
def save_strategy(
  path: str | os.PathLike[str],
  strategy: Given,
  *,
  schema: schemas.Schema,
  objective: str = 'max',
  workload: workloads.Workload = workloads.Workload(),
) -> StrategyFile:
  """Writes a strategy file, and an .npz beside it if there are arrays.

  Args:
    path: path that ends in .json.
    strategy: C.
    schema: participation schema whose figures the file states; the one it was optimised for.
    objective: 'rms' or 'max'.
    workload: workload it was optimised for.
  """
  if isinstance(path, base.Strategy):
    raise ValueError("path must come first, as in save_strategy('mine.json', strategy, schema=…)")
  path = paths.local(path)
  if path.suffix != '.json':
    raise ValueError(f'a strategy file must end in .json, got {str(path)!r}')
  schemas.check(schema)
  schema = schema.plain()  # A file can be read without what registers a participation.
  file = describe(strategy, schema, objective=objective, workload=workload)
  arrays: dict[str, Any] = {}
  strategy_document.to_json(file.strategy, arrays)
  stream, name = io.BytesIO(), None
  if arrays:
    np.savez_compressed(stream, **arrays)
    name = arrays_name(path, stream.getvalue())
  text = json.dumps(document(file, name), indent=2, allow_nan=False) + '\n'
  with durable.locked_folder(path.parent):
    previous = _arrays_of(path)
    if name:
      durable.write_durably(path.with_name(name), stream.getvalue())
    durable.write_durably(path, text.encode())
    for old in previous - _arrays_of(path):
      path.with_name(old).unlink(missing_ok=True)
  return file


def document(file: StrategyFile, arrays: str | None = None) -> json_files.Object:
  """Returns the JSON object of a strategy file."""
  return {
    'format': FORMAT,
    'version': VERSION,
    **strategy_document.to_json(file.strategy, {}, arrays),
    'workload': file.workload.name,
    **{name: value for name, value in dataclasses.asdict(file.workload).items() if value},
    'objective': file.objective,
    'schema': strategy_document.schema_to_json(file.schema),
    **file.figures,
    'made_by': file.version,
  }


def arrays_name(path: pathlib.Path, content: bytes) -> str:
  """Returns the name of the .npz beside a strategy file, by its content."""
  return f'{path.stem}.{hashlib.sha256(content).hexdigest()[:_DIGEST_LENGTH]}.npz'


def _arrays_of(path: pathlib.Path) -> set[str]:
  """Names of the .npz that a file of that path names and that are its own."""
  try:
    text = json_files.read_bytes(path)
  except (OSError, ValueError):
    return set()
  pattern = rf'"npz": "({re.escape(path.stem)}(?:\.[0-9a-f]{{{_DIGEST_LENGTH}}})?\.npz)"'
  return set(re.findall(pattern, text.decode('utf-8', 'replace')))


def matrices_folder() -> pathlib.Path:
  """Returns the folder of named strategies, in the package or a checkout."""
  package = pathlib.Path(__file__).resolve().parents[2]
  installed = package / 'matrices'
  return installed if installed.is_dir() else package.parent / 'matrices'


def names() -> tuple[str, ...]:
  """Returns the names of the strategies in matrices/."""
  return tuple(sorted(path.stem for path in matrices_folder().glob('*.json')))


def parameter_free() -> tuple[str, ...]:
  """Returns the families that need no parameters, and so no file."""
  return tuple(
    name for name, cls in family_registry.FAMILIES.items() if not strategy_document.required(cls)
  )


def resolved(strategy: Given, num_rounds: int | None = None) -> base.Strategy:
  """Returns a strategy that may be given as `load_strategy` takes it, checked for so many rounds.

  Raises:
    ValueError: if it is none, or a mechanism of a user's own whose noise does not undo it.
  """
  if isinstance(strategy, (str, os.PathLike)):
    strategy = load_strategy(strategy)
  base.check_strategy(strategy)
  undoing.check_mechanism(strategy, num_rounds)
  return strategy


def load_strategy(name_or_path: str | os.PathLike[str]) -> base.Strategy:
  """Returns a strategy by file, name in matrices/ or parameter-free family."""
  cls = family_registry.FAMILIES.get(os.fspath(name_or_path))
  if cls is not None and not strategy_document.required(cls):
    return resolved(cls())
  return load(name_or_path).strategy


def load(name_or_path: str | os.PathLike[str]) -> StrategyFile:
  """Reads and checks a strategy file, given by its path or name in matrices/."""
  text = os.fspath(name_or_path)
  if text in names():
    path = matrices_folder() / f'{text}.json'
  else:
    path = paths.local(text)
    if not os.path.isfile(path):
      if text in family_registry.FAMILIES:
        raise ValueError(
          f'strategy {text!r} is a family with parameters: write them to a strategy file'
          ' (`optimize` or dpftrl.save_strategy) and name that file'
        )
      choices = ', '.join(parameter_free() + names())
      raise ValueError(f'strategy {messages.quoted(text)} is neither a file nor one of {choices}')
  try:
    return _read(path)
  except (ValueError, TypeError, OSError) as e:
    raise ValueError(f'strategy file {str(path)!r}: {e}') from e


def _read(path: pathlib.Path) -> StrategyFile:
  """Reads the file again where its arrays were replaced between the two."""
  previous = None
  while True:
    content = json_files.read_bytes(path)
    try:
      return _parse(content, path)
    except strategy_document.MissingArrays:
      if content == previous:
        raise
      previous = content


def _parse(content: bytes, path: pathlib.Path) -> StrategyFile:
  stored = json_files.parse(content)
  if not isinstance(stored, dict):
    raise ValueError('it must hold a JSON object')
  if stored.get('format') != FORMAT:
    raise ValueError(f'format must be {FORMAT!r}, got {messages.quoted(stored.get("format"))}')
  if stored.get('version') != VERSION:
    raise ValueError(f'version must be {VERSION}, got {messages.quoted(stored.get("version"))}')
  file = describe(
    strategy_document.read_strategy(stored, path),
    strategy_document.read_schema(strategy_document.entry(stored, 'schema', dict)),
    objective=strategy_document.entry(stored, 'objective', str),
    workload=strategy_document.read_workload(stored),
    version=strategy_document.entry(stored, 'made_by', str),
  )
  json_files.check_keys(stored, {**document(file), **dataclasses.asdict(file.workload)})
  for name, figure in file.figures.items():
    if isinstance(figure, str):
      value = strategy_document.entry(stored, name, str)
      same = value == figure
    else:
      value = strategy_document.number(stored, name)
      same = math.isclose(value, figure, rel_tol=_RELATIVE_TOLERANCE)
    if not same:
      raise ValueError(f'{name} is {messages.quoted(value)}, but its parameters give {figure!r}')
  return file
