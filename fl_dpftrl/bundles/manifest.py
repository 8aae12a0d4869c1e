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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl_dpftrl import version
from fl_dpftrl.bundles import entries
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import formats, limits, refusals
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.strategies import document as strategy_document
from fl_dpftrl.text import messages

FORMAT = 'fl_dpftrl.bundle'
VERSION = 1
NAME = 'manifest.json'
SEAL = 'manifest.sha256'
STATEMENT = 'statement.json'

_PACKAGES = ('numpy', 'scipy', 'dp-accounting', 'pyarrow', 'duckdb')
_ARRAYS = re.compile(r'\.[0-9a-f]+\.npz\Z')
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
  declared: schemas.MinSep | None
  strategy: str
  strategy_sha256: str
  rounds: str
  last_digest: str

  def to_json(self) -> json_files.Object:
    """Returns the run as the manifest has it."""
    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {**fields, 'layout': self.layout._asdict(), 'declared': schema_entry(self.declared)}

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
      raise refusals.LogError(f'num_rounds is {log.num_rounds} by the log, not {self.num_rounds}')
    run = runs_lib.Run.of(
      log,
      strategy,
      noise_multiplier=self.noise_multiplier,
      changes=self.changes,
      restarts=self.restarts,
    )
    in_log = run.declared_schema is not None and canonical(run.declared_schema) == self.declared
    return dataclasses.replace(run, declared_schema=self.declared, schema_in_log=in_log)


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
    return encoded(FORMAT, self, [run.to_json() for run in self.runs])


def encoded(form: str, manifest: Any, runs: Sequence[json_files.Object]) -> bytes:
  """Returns the file of a manifest of some format, with its runs."""
  document = {
    'format': form,
    'version': VERSION,
    'made_by': manifest.made_by,
    'packages': dict(manifest.packages),
    'guarantee': dataclasses.asdict(manifest.guarantee),
    'runs': runs,
    'files': {name: file._asdict() for name, file in manifest.files.items()},
  }
  return (json.dumps(document, indent=2, allow_nan=False) + '\n').encode()


def seal(content: bytes) -> bytes:
  """Returns the line of `manifest.sha256` for a manifest."""
  return f'{hashlib.sha256(content).hexdigest()}  {NAME}\n'.encode()


@functools.cache
def packages() -> Mapping[str, str]:
  """Returns the releases of Python and of the packages that compute figures."""
  found = {'fl_dpftrl': version.__version__, 'python': platform.python_version()}
  found |= {name: importlib.metadata.version(name) for name in _PACKAGES}
  return types.MappingProxyType(found)


def parse(content: bytes) -> Manifest:
  """Reads the manifest's file.

  Raises:
    ValueError: naming the key, for anything that is no manifest, and for a name that is no
      plain file name.
  """
  document, files = head(content, FORMAT)
  runs = tuple(map(_run, entries.take(document, 'runs', list)))
  for place, run in enumerate(runs, 1):
    logs = [log_name(place, number, name) for number, name in enumerate(run.log, 1)]
    check_names(
      (*run.log, run.strategy, run.rounds), (*logs, strategy_name(place), rounds_name(place))
    )
  check_named(files, (name for run in runs for name in (*run.log, run.strategy, run.rounds)))
  return Manifest(
    made_by=made_by(document),
    packages=document['packages'],
    guarantee=guarantee(document),
    runs=runs,
    files=files,
  )


def head(content: bytes, form: str) -> tuple[json_files.Object, dict[str, File]]:
  """Reads what manifests of all formats have: releases and files.

  Raises:
    ValueError: as `parse`.
  """
  document = json_files.parse(content)
  if not isinstance(document, dict) or document.get('format') != form:
    raise ValueError(f'it must be a JSON object of format {form!r}')
  if document.get('version') != VERSION:
    raise ValueError(f'version must be {VERSION}, got {messages.quoted(document.get("version"))}')
  entries.check_keys(document, {'format', 'version', *entries.names(Manifest)})
  made_with = entries.take(document, 'packages', dict)
  entries.check_keys(made_with, set(packages()))
  for name in made_with:
    entries.check_release(name, made_with[name])
  files = {}
  for name, entry in entries.take(document, 'files', dict).items():
    entries.check_name(name)
    if name in (NAME, SEAL) or not isinstance(entry, dict):
      raise ValueError(f'files must not have {messages.quoted(name)}')
    entries.check_keys(entry, set(File._fields))
    files[name] = File(entries.take(entry, 'bytes', int), entries.digest(entry, 'sha256'))
  if not entries.take(document, 'runs', list):
    raise ValueError('runs must not be empty')
  return document, files


def made_by(document: json_files.Object) -> str:
  """Returns the release that wrote a bundle; ValueError unless `packages` has it too."""
  release = entries.check_release('made_by', document['made_by'])
  if release != document['packages']['fl_dpftrl']:
    raise ValueError(f'made_by is {messages.quoted(release)}, and packages have another release')
  return release


def check_named(files: Mapping[str, File], named: Iterable[str]) -> None:
  """Raises ValueError unless the manifest lists the files that it names, and no others.

  Arrays of a strategy are named by the strategy's own file.
  """
  own = {STATEMENT, *named}
  for name in sorted(own - files.keys()):
    raise ValueError(f'files must have {name!r}, which the manifest names')
  for name in sorted(files.keys() - own):
    if f'{_ARRAYS.sub("", name)}.json' not in own:
      raise ValueError(f'files must not have {messages.quoted(name)}, which nothing names')


def check_names(stated: Iterable[str], own: Iterable[str]) -> None:
  """Raises ValueError unless a run's files have the names that writers give them."""
  for name, expected in zip(stated, own, strict=True):
    if name != expected:
      raise ValueError(f'the name of a file must be {expected!r}, got {messages.quoted(name)}')


def log_name(place: int, number: int, path: str) -> str:
  """Returns the name of a file of a run's log; runs and files count from 1."""
  return f'log-{place}-{number}{formats.suffix_of(path)}'


def strategy_name(place: int, first_round: int = 0) -> str:
  """Returns the name of the file of a run's strategy from a round on; runs count from 1."""
  return f'strategy-{place}-{first_round}.json' if first_round else f'strategy-{place}.json'


def rounds_name(place: int) -> str:
  """Returns the name of the file with the chained digests of a run."""
  return f'rounds-{place}.txt'


def commitments_name(place: int) -> str:
  """Returns the name of the file with the commitments of a run."""
  return f'commitments-{place}.txt'


def guarantee(document: json_files.Object) -> Guarantee:
  """Reads the arguments of `replay`; ValueError for any that cannot be."""
  entry = entries.take(document, 'guarantee', dict)
  entries.check_keys(entry, entries.names(Guarantee))
  goal = entry['report_goal']
  return Guarantee(
    deltas=tuple(
      float(entries.of_kind('deltas', d, entries.NUMBER))
      for d in entries.take(entry, 'deltas', list)
    ),
    adjacency=entries.take(entry, 'adjacency', str),
    group_size=entries.take(entry, 'group_size', int),
    report_goal=goal if goal is None else entries.of_kind('report_goal', goal, int),
  )


def _run(entry: Any) -> Run:
  entries.check_keys(entries.of_kind('runs', entry, dict), entries.names(Run))
  logs = tuple(entries.check_name(name) for name in entries.take(entry, 'log', list))
  if not logs:
    raise ValueError('log must not be empty')
  place = entries.take(entry, 'layout', dict)
  entries.check_keys(place, set(layout_lib.Layout._fields))
  for name, kind in layout_lib.Layout.__annotations__.items():
    entries.take(place, name, kind)
  if not 0 <= place['first_round'] < limits.ROUNDS:
    raise ValueError(f'first_round must be from 0 to {limits.ROUNDS - 1}')
  return Run(
    log=logs,
    layout=layout_lib.Layout(**place),
    num_rounds=entries.take(entry, 'num_rounds', int),
    num_rounds_assumed=entries.take(entry, 'num_rounds_assumed', bool),
    noise_multiplier=float(entries.take(entry, 'noise_multiplier', entries.NUMBER)),
    changes=tuple(map(entries.change, entries.take(entry, 'changes', list))),
    restarts=tuple(
      entries.of_kind('restarts', t, int) for t in entries.take(entry, 'restarts', list)
    ),
    declared=schema(entry['declared']),
    strategy=entries.check_name(entry['strategy']),
    strategy_sha256=entries.digest(entry, 'strategy_sha256'),
    rounds=entries.check_name(entry['rounds']),
    last_digest=entries.digest(entry, 'last_digest'),
  )


def schema_entry(declared: schemas.MinSep | None) -> json_files.Object | None:
  """Returns a declared schema as manifests have it."""
  if declared is None:
    return None
  return {'participation': strategy_document.schema_name(declared), **dataclasses.asdict(declared)}


def canonical(declared: schemas.MinSep) -> schemas.MinSep:
  """Returns a declared schema with the most participations that fit into its rounds."""
  return dataclasses.replace(declared, max_participations=declared.participations)


def schema(entry: Any) -> schemas.MinSep | None:
  """Reads a declared schema; ValueError for what is none."""
  if entry is None:
    return None
  declared = strategy_document.read_schema(entries.of_kind('declared', entry, dict))
  if declared != canonical(declared):
    raise ValueError(f'declared must have at most {declared.participations} max_participations')
  return declared
