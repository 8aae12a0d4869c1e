"""The manifest of a bundle: its files, runs and parameters.

It is JSON, format version 1. `manifest.sha256` has the digest of the manifest's bytes, as
`sha256sum` writes it. The manifest has the digests of all other files.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import fl_dpftrl
from fl_dpftrl import json_files, messages, participation, strategy_document
from fl_dpftrl.families import base
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import limits
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import runs as runs_lib

FORMAT = 'fl_dpftrl.bundle'
VERSION = 1
NAME = 'manifest.json'
SEAL = 'manifest.sha256'
STATEMENT = 'statement.json'

_FILE_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,199}')
_SHA256 = re.compile(r'[0-9a-f]{64}')
_PACKAGES = ('numpy', 'scipy', 'dp-accounting', 'pyarrow', 'duckdb')
_NUMBER = (int, float)
_BLOCK = 1 << 20


class File(NamedTuple):
  """Size in bytes and SHA-256 of a file of the bundle."""

  bytes: int
  sha256: str

  @classmethod
  def of(cls, path: str | os.PathLike[str]) -> 'File':
    """Reads a regular file; a link is not followed, and OSError is raised."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, 'rb') as stream:
      while block := stream.read(_BLOCK):
        digest.update(block)
        size += len(block)
    return cls(size, digest.hexdigest())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """The arguments of `replay` that hold for all runs.

  Attributes:
    deltas: δ, one or several.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.
    report_goal: intended devices per round; None if not stated.
  """

  deltas: tuple[float, ...]
  adjacency: str = 'zero_out'
  group_size: int = 1
  report_goal: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """The files and parameters of a run.

  Attributes:
    log: names of the log's files.
    layout: where these files have their columns.
    num_rounds: n, rows of noise consumed.
    num_rounds_assumed: whether num_rounds rests on the last round alone.
    noise_multiplier: std(Z) / clip_norm in round 0.
    changes: (round, noise multiplier from that round on).
    restarts: rounds at which the noise was restarted.
    declared: schema that was declared before the run; None if none was.
    strategy: name of the strategy file.
    strategy_sha256: digest of the strategy's family and parameters.
    rounds: name of the file with the chained digest of each round.
    last_digest: chained digest of the last round.
  """

  log: tuple[str, ...]
  layout: layout_lib.Layout
  num_rounds: int
  num_rounds_assumed: bool
  noise_multiplier: float
  changes: tuple[tuple[int, float], ...]
  restarts: tuple[int, ...]
  declared: participation.MinSep | None
  strategy: str
  strategy_sha256: str
  rounds: str
  last_digest: str

  def to_json(self) -> json_files.Object:
    """Returns the run as the manifest has it."""
    declared = self.declared and {
      'participation': strategy_document.schema_name(self.declared),
      **dataclasses.asdict(self.declared),
    }
    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {**fields, 'layout': self.layout._asdict(), 'declared': declared}

  def open(self, folder: pathlib.Path, strategy: base.Strategy) -> runs_lib.Run:
    """Opens the run's log in a folder, with its noise.

    Raises:
      LogError: if the log cannot be believed.
      ValueError: if a parameter is out of range.
    """
    log = log_lib.read_log(
      [folder / name for name in self.log],
      num_rounds=None if self.num_rounds_assumed else self.num_rounds,
      layout=self.layout,
    )
    if log.num_rounds != self.num_rounds or log.num_rounds_assumed != self.num_rounds_assumed:
      raise log_lib.LogError(f'num_rounds is {log.num_rounds} by the log, not {self.num_rounds}')
    run = runs_lib.Run.of(
      log,
      strategy,
      noise_multiplier=self.noise_multiplier,
      changes=self.changes,
      restarts=self.restarts,
    )
    in_log = run.declared is not None and run.declared == self.declared
    return dataclasses.replace(run, declared=self.declared, declared_in_log=in_log)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Content of a bundle.

  Attributes:
    made_by: release that wrote the bundle.
    packages: release of Python and of each package that computes figures.
    guarantee: arguments of `replay`.
    runs: the runs.
    files: the files by name, without the manifest and its digest.
  """

  made_by: str
  packages: Mapping[str, str]
  guarantee: Guarantee
  runs: tuple[Run, ...]
  files: Mapping[str, File]

  def to_bytes(self) -> bytes:
    """Returns the manifest's file."""
    document = {
      'format': FORMAT,
      'version': VERSION,
      'made_by': self.made_by,
      'packages': dict(self.packages),
      'guarantee': dataclasses.asdict(self.guarantee),
      'runs': [run.to_json() for run in self.runs],
      'files': {name: file._asdict() for name, file in self.files.items()},
    }
    return (json.dumps(document, indent=2, allow_nan=False) + '\n').encode()


def seal(content: bytes) -> bytes:
  """Returns the line of `manifest.sha256` for a manifest."""
  return f'{hashlib.sha256(content).hexdigest()}  {NAME}\n'.encode()


@functools.cache
def packages() -> Mapping[str, str]:
  """Returns the releases of Python and of the packages that compute figures."""
  found = {'fl_dpftrl': fl_dpftrl.__version__, 'python': platform.python_version()}
  found |= {name: importlib.metadata.version(name) for name in _PACKAGES}
  return types.MappingProxyType(found)


def parse(content: bytes) -> Manifest:
  """Reads the manifest's file.

  Raises:
    ValueError: naming the key, for anything that is no manifest, and for a name that is no
      plain file name.
  """
  document = json_files.parse(content)
  if not isinstance(document, dict) or document.get('format') != FORMAT:
    raise ValueError(f'it must be a JSON object of format {FORMAT!r}')
  if document.get('version') != VERSION:
    raise ValueError(f'version must be {VERSION}, got {messages.quoted(document.get("version"))}')
  _check_keys(document, {'format', 'version', *_fields(Manifest)})
  made_with = _take(document, 'packages', dict)
  for name in made_with:
    _take(made_with, name, str)
  files = {}
  for name, entry in _take(document, 'files', dict).items():
    _check_name(name)
    if name in (NAME, SEAL) or not isinstance(entry, dict):
      raise ValueError(f'files must not have {messages.quoted(name)}')
    _check_keys(entry, set(File._fields))
    files[name] = File(_take(entry, 'bytes', int), _digest(entry, 'sha256'))
  runs = tuple(map(_run, _take(document, 'runs', list)))
  if not runs:
    raise ValueError('runs must not be empty')
  named = {STATEMENT}.union(*({*run.log, run.strategy, run.rounds} for run in runs))
  for name in sorted(named - files.keys()):
    raise ValueError(f'files must have {name!r}, which the manifest names')
  return Manifest(
    made_by=_take(document, 'made_by', str),
    packages=made_with,
    guarantee=_guarantee(_take(document, 'guarantee', dict)),
    runs=runs,
    files=files,
  )


def _guarantee(entry: json_files.Object) -> Guarantee:
  _check_keys(entry, _fields(Guarantee))
  goal = entry['report_goal']
  return Guarantee(
    deltas=tuple(float(_of_kind('deltas', d, _NUMBER)) for d in _take(entry, 'deltas', list)),
    adjacency=_take(entry, 'adjacency', str),
    group_size=_take(entry, 'group_size', int),
    report_goal=goal if goal is None else _of_kind('report_goal', goal, int),
  )


def _run(entry: Any) -> Run:
  _check_keys(_of_kind('runs', entry, dict), _fields(Run))
  logs = tuple(_check_name(name) for name in _take(entry, 'log', list))
  if not logs:
    raise ValueError('log must not be empty')
  place = _take(entry, 'layout', dict)
  _check_keys(place, set(layout_lib.Layout._fields))
  for name, kind in layout_lib.Layout.__annotations__.items():
    _take(place, name, kind)
  if not 0 <= place['first_round'] < limits.ROUNDS:
    raise ValueError(f'first_round must be from 0 to {limits.ROUNDS - 1}')
  declared = entry['declared']
  return Run(
    log=logs,
    layout=layout_lib.Layout(**place),
    num_rounds=_take(entry, 'num_rounds', int),
    num_rounds_assumed=_take(entry, 'num_rounds_assumed', bool),
    noise_multiplier=float(_take(entry, 'noise_multiplier', _NUMBER)),
    changes=tuple(map(_change, _take(entry, 'changes', list))),
    restarts=tuple(_of_kind('restarts', t, int) for t in _take(entry, 'restarts', list)),
    declared=declared
    if declared is None
    else strategy_document.read_schema(_of_kind('declared', declared, dict)),
    strategy=_check_name(entry['strategy']),
    strategy_sha256=_digest(entry, 'strategy_sha256'),
    rounds=_check_name(entry['rounds']),
    last_digest=_digest(entry, 'last_digest'),
  )


def _change(pair: Any) -> tuple[int, float]:
  if len(_of_kind('changes', pair, list)) != 2:
    raise ValueError('changes must be pairs of a round and a noise multiplier')
  return _of_kind('changes', pair[0], int), float(_of_kind('changes', pair[1], _NUMBER))


def _fields(cls: type[Any]) -> set[str]:
  return {field.name for field in dataclasses.fields(cls)}


def _check_keys(entry: json_files.Object, known: set[str]) -> None:
  for name in sorted(known ^ entry.keys()):
    raise ValueError(f'{messages.quoted(name)} is {"missing" if name in known else "unknown"}')


def _check_name(name: Any) -> str:
  if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
    raise ValueError(f'a file must have a plain name in the bundle, got {messages.quoted(name)}')
  return name


def _digest(entry: json_files.Object, name: str) -> str:
  value = _take(entry, name, str)
  if not _SHA256.fullmatch(value):
    raise ValueError(f'{name} must be 64 hexadecimal digits, got {messages.quoted(value)}')
  return value


def _take(entry: json_files.Object, name: str, kind: Any) -> Any:
  return _of_kind(name, entry.get(name), kind)


def _of_kind(name: str, value: Any, kind: Any) -> Any:
  if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
    raise ValueError(f'{messages.quoted(name)} must not be {messages.quoted(value)}')
  return value
