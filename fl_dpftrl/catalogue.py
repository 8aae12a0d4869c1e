"""Strategy files: written with their figures, and believed only with them.

A strategy file is JSON, format version 1. Arrays stand beside it in an ``.npz``
that it names. Loading computes sensitivity, errors and losses anew and refuses
a file whose figures are not its own.
"""

import dataclasses
import io
import json
import math
import os
import pathlib
from typing import Any
import zipfile
import zlib

import numpy as np

import fl_dpftrl
from fl_dpftrl import error as error_lib
from fl_dpftrl import files
from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.families import base
from fl_dpftrl.families import registry

FORMAT = 'fl_dpftrl.strategy'
VERSION = 1
OBJECTIVES = ('rms', 'max')

_RELATIVE_TOLERANCE = 1e-9
# What NumPy raises for archives that are missing, cut short or hold objects.
_UNREADABLE = (
    AttributeError, EOFError, KeyError, OSError, TypeError, ValueError,
    zipfile.BadZipFile, zlib.error,
)
_SCHEMAS = {
    'min_sep': participation.MinSep,
    'fixed_separation': participation.FixedSeparation,
}


@dataclasses.dataclass(frozen=True)
class StrategyFile:
  """A strategy with what it was made for, and how well it does there.

  Attributes:
    strategy: C.
    schema: the participation it was optimised for.
    objective: 'rms' or 'max'; None where it was optimised for neither.
    workload: what it was optimised for.
    sensitivity: under `schema`.
    error: of `workload` over the rounds of `schema`.
    version: the release that made it.
  """

  strategy: base.Strategy
  schema: participation.MinSep
  objective: str | None
  workload: workloads.Workload
  sensitivity: sensitivity_lib.Sensitivity
  error: error_lib.Error
  version: str

  @property
  def figures(self) -> dict[str, Any]:
    """What a file claims of its strategy, and loading computes anew."""
    return {
        'sensitivity': self.sensitivity.value,
        'sensitivity_kind': self.sensitivity.kind,
        'rms_error': self.error.rms,
        'max_error': self.error.max,
        'rms_loss': self.sensitivity.value * self.error.rms,
        'max_loss': self.sensitivity.value * self.error.max,
    }


def evaluate(
    strategy: base.Strategy,
    *,
    schema: participation.MinSep,
    objective: str | None = None,
    workload: workloads.Workload = workloads.Workload(),
    version: str = fl_dpftrl.__version__,
) -> StrategyFile:
  """A strategy with its figures, as a file would hold them.

  Raises:
    ValueError: where the objective is unknown or the strategy cannot run for
      the rounds of the schema.
  """
  if objective is not None and objective not in OBJECTIVES:
    raise ValueError(
        f'objective must be one of {", ".join(OBJECTIVES)}, got {objective!r}'
    )
  return StrategyFile(
      strategy=strategy,
      schema=schema,
      objective=objective,
      workload=workload,
      sensitivity=sensitivity_lib.sensitivity(strategy, schema),
      error=error_lib.error(strategy, schema.num_rounds, workload),
      version=version,
  )


def save(
    path: str | os.PathLike[str],
    strategy: base.Strategy,
    *,
    schema: participation.MinSep,
    objective: str,
    workload: workloads.Workload = workloads.Workload(),
) -> StrategyFile:
  """Writes a strategy file, and an .npz beside it where there are arrays.

  Args:
    path: ends in .json.
    strategy: C.
    schema: the participation it was optimised for.
    objective: 'rms' or 'max'.
    workload: what it was optimised for.

  Returns:
    What `load` of the file gives.

  Raises:
    ValueError: as `evaluate`, and where path does not end in .json.
    OSError: where it cannot be written.
  """
  path = pathlib.Path(path)
  if path.suffix != '.json':
    raise ValueError(f'a strategy file must end in .json, got {str(path)!r}')
  file = evaluate(
      strategy, schema=schema, objective=objective, workload=workload
  )
  arrays: dict[str, np.ndarray] = {}
  arrays_path = path.with_suffix('.npz')
  document = {
      'format': FORMAT,
      'version': VERSION,
      **_description(strategy, arrays_path.name, arrays),
      'workload': workload.name,
      **{
          name: value
          for name, value in dataclasses.asdict(workload).items()
          if value
      },
      'objective': objective,
      'schema': {
          'participation': _schema_name(schema),
          **dataclasses.asdict(schema),
      },
      **file.figures,
      'made_by': file.version,
  }
  if arrays:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    files.write_durably(arrays_path, content.getvalue())
  text = json.dumps(document, indent=2, allow_nan=False) + '\n'
  files.write_durably(path, text.encode())
  return file


def _description(
    strategy: base.Strategy,
    npz: str,
    arrays: dict[str, np.ndarray],
    prefix: str = '',
) -> dict[str, Any]:
  """Family and parameters of a strategy, for JSON.

  Arrays are moved into `arrays`, under the parameter's name; those of a strategy
  inside another one under the names of the parameters that lead there, joined
  by dots.
  """
  parameters = {}
  for name, value in strategy.parameters().items():
    if isinstance(value, np.ndarray):
      arrays[prefix + name], value = value, {'npz': npz}
    elif isinstance(value, base.Strategy):
      value = _description(value, npz, arrays, f'{prefix}{name}.')
    parameters[name] = value
  return {'family': strategy.family, 'parameters': parameters}


def _schema_name(schema: participation.MinSep) -> str:
  for name, cls in _SCHEMAS.items():
    if type(schema) is cls:  # pylint: disable=unidiomatic-typecheck
      return name
  raise ValueError(
      f'schema must be a MinSep or a FixedSeparation, got {schema!r}'
  )


def matrices_folder() -> pathlib.Path:
  """The folder of named strategies: in the package, or beside a checkout's."""
  package = pathlib.Path(__file__).resolve().parent
  installed = package / 'matrices'
  return installed if installed.is_dir() else package.parent / 'matrices'


def names() -> tuple[str, ...]:
  """Names of the strategies in matrices/."""
  return tuple(sorted(path.stem for path in matrices_folder().glob('*.json')))


def parameter_free() -> tuple[str, ...]:
  """Families that need no parameters, and so no file."""
  return tuple(
      name
      for name, cls in registry.FAMILIES.items()
      if not _required(cls)
  )


def _required(cls: type[base.Strategy]) -> set[str]:
  """Parameters of a family that have no default."""
  return {
      field.name
      for field in dataclasses.fields(cls)
      if field.default is dataclasses.MISSING
      and field.default_factory is dataclasses.MISSING
  }


def load_strategy(name_or_path: str | os.PathLike[str]) -> base.Strategy:
  """A strategy from a file, a name in matrices/ or a parameter-free family.

  Raises:
    ValueError: where there is none, or as `load`.
  """
  if name_or_path in parameter_free():
    return registry.FAMILIES[name_or_path]()
  return load(name_or_path).strategy


def load(name_or_path: str | os.PathLike[str]) -> StrategyFile:
  """Reads a strategy file, by its path or its name in matrices/, and checks it.

  Raises:
    ValueError: naming the file and the field, where it is missing, malformed,
      of another version or family, or its figures are not its own.
  """
  text = os.fspath(name_or_path)
  if text in names():
    path = matrices_folder() / f'{text}.json'
  else:
    path = pathlib.Path(text)
    if not path.is_file():
      known = ', '.join(parameter_free() + names())
      raise ValueError(
          f'strategy {text!r} is neither a file nor one of {known}'
      )
  try:
    return _read(path)
  except (ValueError, TypeError, OSError) as e:
    raise ValueError(f'strategy file {str(path)!r}: {e}') from e


def _refuse_constant(constant: str) -> None:
  raise ValueError(f'{constant} is not a number of a strategy file')


def _read(path: pathlib.Path) -> StrategyFile:
  try:
    document = json.loads(
        path.read_text(encoding='utf-8'), parse_constant=_refuse_constant
    )
  except (json.JSONDecodeError, UnicodeDecodeError) as e:
    raise ValueError(f'it is not JSON, or cut short: {e}') from e
  if not isinstance(document, dict):
    raise ValueError('it must hold a JSON object')
  if document.get('format') != FORMAT:
    raise ValueError(
        f'format must be {FORMAT!r}, got {document.get("format")!r}'
    )
  if document.get('version') != VERSION:
    raise ValueError(
        f'version must be {VERSION}, got {document.get("version")!r}'
    )
  file = evaluate(
      _strategy(document, path),
      schema=_schema(_field(document, 'schema', dict)),
      objective=_field(document, 'objective', str),
      workload=_workload(document),
      version=_field(document, 'made_by', str),
  )
  for name, own in file.figures.items():
    if isinstance(own, str):
      stored = _field(document, name, str)
      same = stored == own
    else:
      stored = _number(document, name)
      same = math.isclose(stored, own, rel_tol=_RELATIVE_TOLERANCE)
    if not same:
      raise ValueError(
          f'{name} is {stored!r}, but its parameters give {own!r}'
      )
  return file


def _field(document: dict[str, Any], name: str, kind: type[Any]) -> Any:
  value = document.get(name)
  if not isinstance(value, kind):
    what = {str: 'text', dict: 'an object'}[kind]
    raise ValueError(f'{name} must be {what}, got {value!r}')
  return value


def _number(document: dict[str, Any], name: str) -> float:
  value = document.get(name)
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise ValueError(f'{name} must be a number, got {value!r}')
  return float(value)


def _workload(document: dict[str, Any]) -> workloads.Workload:
  name = _field(document, 'workload', str)
  if name not in ('prefix', 'momentum'):
    raise ValueError(f'workload must be prefix or momentum, got {name!r}')
  workload = workloads.Workload(**{
      field.name: _number(document, field.name)
      for field in dataclasses.fields(workloads.Workload)
      if field.name in document
  })
  if workload.name != name:
    raise ValueError(
        f'workload is {name!r}, but its momentum is {workload.momentum!r}'
    )
  return workload


def _schema(document: dict[str, Any]) -> participation.MinSep:
  arguments = dict(document)
  name = arguments.pop('participation', None)
  if name not in _SCHEMAS:
    raise ValueError(
        f'schema participation must be one of {", ".join(_SCHEMAS)}, got'
        f' {name!r}'
    )
  known = {field.name for field in dataclasses.fields(participation.MinSep)}
  if arguments.keys() != known:
    raise ValueError(
        f'schema must have {", ".join(sorted(known))}, got'
        f' {", ".join(sorted(arguments)) or "none"}'
    )
  return _SCHEMAS[name](**arguments)


def _strategy(
    document: dict[str, Any], path: pathlib.Path, prefix: str = ''
) -> base.Strategy:
  family = _field(document, 'family', str)
  if family not in registry.FAMILIES:
    raise ValueError(
        f'family must be one of {", ".join(registry.FAMILIES)}, got {family!r}'
    )
  cls = registry.FAMILIES[family]
  parameters = _field(document, 'parameters', dict)
  known = {field.name for field in dataclasses.fields(cls)}
  if not _required(cls) <= parameters.keys() <= known:
    raise ValueError(
        f'parameters of {family} must be {", ".join(sorted(known)) or "none"},'
        f' got {", ".join(sorted(parameters)) or "none"}'
    )
  parameters = {
      name: _parameter(value, name, path, prefix)
      for name, value in parameters.items()
  }
  try:
    return cls(**parameters)
  except (TypeError, ValueError) as e:
    raise ValueError(f'parameters: {e}') from e


def _parameter(value: Any, name: str, path: pathlib.Path, prefix: str) -> Any:
  """A parameter as `_description` writes it, turned back."""
  if not isinstance(value, dict):
    return value
  if 'family' not in value:
    return _array(value, prefix + name, path)
  try:
    return _strategy(value, path, f'{prefix}{name}.')
  except ValueError as e:
    raise ValueError(f'{name}: {e}') from e


def _array(
    reference: dict[str, Any], name: str, path: pathlib.Path
) -> np.ndarray:
  file_name = _field(reference, 'npz', str)
  if pathlib.PurePath(file_name).name != file_name:
    raise ValueError(
        f'{name} must name an .npz beside the file, got {file_name!r}'
    )
  try:
    with np.load(path.with_name(file_name), allow_pickle=False) as arrays:
      return arrays[name]
  except _UNREADABLE as e:
    raise ValueError(
        f'{name} cannot be read from {file_name!r}, which is missing, cut short'
        f' or no .npz: {e}'
    ) from e
