"""The manifest of a bundle: releases, arguments of `replay`, and digests of all other files.

It is JSON, format version 2. `manifest.sha256` has the digest of the manifest's bytes, as
`sha256sum` writes it. What follows from logs, strategies and arguments stands in the statement
alone. Files are known by their names, so that a run needs no list of its own.
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
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fl_dpftrl import version
from fl_dpftrl.accounting import arithmetic, run_noise
from fl_dpftrl.bundles import entries
from fl_dpftrl.families import base
from fl_dpftrl.files import durable, json_files
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import limits, noise_record, reader
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.text import messages

FORMAT = 'fl_dpftrl.bundle'
PUBLIC_FORMAT = 'fl_dpftrl.public_bundle'
VERSION = 2
NAME = 'manifest.json'
SEAL = 'manifest.sha256'
STATEMENT = 'statement.json'

_PACKAGES = ('numpy', 'scipy', 'dp-accounting', 'pyarrow', 'duckdb')
_FILE_NAME = re.compile(r'[A-Za-z0-9][A-Za-z0-9._-]{0,199}')
_RELEASE = re.compile(r'[0-9][0-9A-Za-z.+!-]{0,39}')
_SHA256 = re.compile(r'[0-9a-f]{64}')
_ARRAYS = re.compile(r'\.[0-9a-f]+\.npz\Z')
_LOG = re.compile(r'log-([1-9][0-9]{0,8})-([1-9][0-9]{0,8})(\..+)?')
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
  """The arguments of `replay` for one run.

  In a bundle with logs, those that a log states itself are None. In a public bundle, which has no
  log, all are there but the layout.

  Attributes:
    layout: where the log's files have their columns.
    num_rounds: n, rows of noise consumed; None too if it rests on the last round alone.
    noise_multiplier: std(Z) / clip_norm.
    declared: schema that was declared before the run; None too if none was.
  """

  layout: layout_lib.Layout | None
  num_rounds: int | None
  noise_multiplier: float | None
  declared: schemas.MinSep | None

  @classmethod
  def published(cls, run: runs_lib.Run) -> 'Run':
    """Returns the arguments of a run in a public bundle."""
    return cls(
      layout=None,
      num_rounds=run.log.num_rounds,
      noise_multiplier=float(run.noise.noise_multiplier),
      declared=run.declared_schema and entries.canonical(run.declared_schema),
    )

  @classmethod
  def of(cls, run: runs_lib.Run) -> 'Run':
    """Returns the arguments of a run beside its log."""
    full, log = cls.published(run), run.log
    stated = noise_record.read(log.metadata).noise_multiplier
    rounds_known = log.num_rounds_assumed or log.shards[0].num_rounds is not None
    return cls(
      layout=log.layout,
      num_rounds=None if rounds_known else full.num_rounds,
      noise_multiplier=None if full.noise_multiplier == stated else full.noise_multiplier,
      declared=None if run.schema_in_log else full.declared,
    )

  def open(self, paths: list[pathlib.Path], strategy: base.Strategy) -> runs_lib.Run:
    """Opens the run's log, with its noise."""
    log = log_lib.read_log(
      paths, num_rounds=self.num_rounds, layout=self.layout or layout_lib.PLAIN
    )
    run = runs_lib.Run.of(
      log, strategy, noise_multiplier=self.noise_multiplier, declared_schema=self.declared
    )
    if run.declared_schema is not None:
      run = dataclasses.replace(run, declared_schema=entries.canonical(run.declared_schema))
    own = Run.of(run)
    for name, value in vars(self).items():
      if getattr(own, name) != value:
        raise ValueError(f'{name} must be null, as the log states it')
    return run

  def noise(self, strategy: base.Strategy, asserted: json_files.Object) -> run_noise.RunNoise:
    """Returns the noise of a public run; ValueError if an argument is out of range.

    Args:
      strategy: C.
      asserted: facts of the run in the statement, which alone has its clip norm.
    """
    clip_norm = asserted.get('clip_norm')
    return run_noise.RunNoise(
      self.num_rounds or 0,
      strategy,
      self.noise_multiplier or 0.0,
      clip_norm=None if clip_norm is None else entries.typed('clip_norm', clip_norm, float),
      arithmetic=arithmetic.Arithmetic(
        kind=asserted.get('arithmetic', arithmetic.NOT_COVERED),
        num_coordinates=asserted.get('num_coordinates'),
      ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Content of a bundle.

  Attributes:
    format: FORMAT, or PUBLIC_FORMAT.
    version: VERSION.
    made_by: release that wrote the bundle.
    packages: release of Python and of each package that computes figures.
    guarantee: arguments of `replay` for all runs together.
    runs: arguments of each run.
    files: the files by name, without the manifest and its digest.
  """

  format: str
  version: int
  made_by: str
  packages: Mapping[str, str]
  guarantee: Guarantee
  runs: tuple[Run, ...]
  files: Mapping[str, File]

  def __post_init__(self):
    if self.packages.keys() != packages().keys():
      raise ValueError(f'packages must be {", ".join(packages())}')
    for name, release in (('made_by', self.made_by), *self.packages.items()):
      if not _RELEASE.fullmatch(release):
        raise ValueError(f'{name} must be a release, got {messages.quoted(release)}')
    if self.made_by != self.packages['fl_dpftrl']:
      raise ValueError(f'made_by is {self.made_by!r}, and packages have another release')
    if not self.runs:
      raise ValueError('runs must not be empty')
    for run in self.runs:
      self._check_run(run)
    for name, file in self.files.items():
      if not _FILE_NAME.fullmatch(name) or name in (NAME, SEAL):
        raise ValueError(f'files must have plain names in the bundle, got {messages.quoted(name)}')
      if not _SHA256.fullmatch(file.sha256):
        raise ValueError(f'sha256 of {name} must be 64 hexadecimal digits')
    self._check_files()

  def _check_run(self, run: Run) -> None:
    if self.public and run.layout is not None:
      raise ValueError('layout must be null in a public bundle')
    of_noise = ('num_rounds', 'noise_multiplier')
    for name in of_noise if self.public else ('layout',):
      if getattr(run, name) is None:
        raise ValueError(f'{name} must not be null')
    if run.layout and not 0 <= run.layout.first_round < limits.ROUNDS:
      raise ValueError(f'first_round must be from 0 to {limits.ROUNDS - 1}')

  def _check_files(self) -> None:
    """Raises ValueError unless the files are those of a bundle, by their names, and no others.

    Arrays of a strategy are named by the strategy's own file.
    """
    own = {STATEMENT}
    for place in range(1, len(self.runs) + 1):
      own.add(strategy_name(place))
      if self.public:
        own.add(commitments_name(place))
        continue
      own.add(rounds_name(place))
      logs = self.logs(place) or [log_name(place, 1, '')]
      own |= {log_name(place, number, name) for number, name in enumerate(logs, 1)}
    for name in sorted(own - self.files.keys()):
      raise ValueError(f'files must have {messages.quoted(name)}, which its runs need')
    for name in sorted(self.files.keys() - own):
      if f'{_ARRAYS.sub("", name)}.json' not in own:
        raise ValueError(f'files must not have {messages.quoted(name)}, which no run needs')

  @property
  def public(self) -> bool:
    """True for a public bundle."""
    return self.format == PUBLIC_FORMAT

  def to_bytes(self) -> bytes:
    """Returns the manifest's file."""
    return (json.dumps(entries.to_json(self), indent=2, allow_nan=False) + '\n').encode()

  def logs(self, place: int) -> list[str]:
    """Returns the names of a run's log files, in order; runs count from 1."""
    return [name for _, name in self._logs.get(place, ())]

  @functools.cached_property
  def _logs(self) -> dict[int, list[tuple[int, str]]]:
    """Numbers and names of the log files, by run."""
    result: dict[int, list[tuple[int, str]]] = {}
    for name in self.files:
      if match := _LOG.fullmatch(name):
        result.setdefault(int(match[1]), []).append((int(match[2]), name))
    return {place: sorted(own) for place, own in result.items()}


def parse(content: bytes) -> Manifest:
  """Reads the manifest's file; ValueError, naming the key, for anything that is no manifest."""
  document = json_files.parse(content)
  if not isinstance(document, dict) or document.get('format') not in (FORMAT, PUBLIC_FORMAT):
    raise ValueError(f'it must be a JSON object of format {FORMAT!r} or {PUBLIC_FORMAT!r}')
  if document.get('version') != VERSION:
    raise ValueError(f'version must be {VERSION}, got {messages.quoted(document.get("version"))}')
  return entries.typed('manifest', document, Manifest)


def write(
  folder: pathlib.Path, kind: str, guarantee: Guarantee, runs: Iterable[Run], *, private: bool
) -> str:
  """Writes the manifest of the files in a folder and its digest; returns that, in hexadecimal.

  Args:
    guarantee, runs: arguments of `replay`.
    private: True if only its owner may read the files.
  """
  content = Manifest(
    format=kind,
    version=VERSION,
    made_by=version.__version__,
    packages=packages(),
    guarantee=guarantee,
    runs=tuple(runs),
    files={name: File.of(folder / name) for name in sorted(os.listdir(folder))},
  ).to_bytes()
  durable.write_durably(folder / NAME, content, private=private)
  durable.write_durably(folder / SEAL, seal(content), private=private)
  return hashlib.sha256(content).hexdigest()


def seal(content: bytes) -> bytes:
  """Returns the line of `manifest.sha256` for a manifest."""
  return f'{hashlib.sha256(content).hexdigest()}  {NAME}\n'.encode()


@functools.cache
def packages() -> Mapping[str, str]:
  """Returns the releases of Python and of the packages that compute figures."""
  releases = {'fl_dpftrl': version.__version__, 'python': platform.python_version()}
  releases |= {name: importlib.metadata.version(name) for name in _PACKAGES}
  return types.MappingProxyType(releases)


def log_name(place: int, number: int, path: str) -> str:
  """Returns the name of a file of a run's log; runs and files count from 1."""
  return f'log-{place}-{number}{reader.suffix_of(path)}'


def strategy_name(place: int) -> str:
  """Returns the name of the file of a run's strategy; runs count from 1."""
  return f'strategy-{place}.json'


def rounds_name(place: int) -> str:
  """Returns the name of the file with the chained digests of a run."""
  return f'rounds-{place}.txt'


def commitments_name(place: int) -> str:
  """Returns the name of the file with the commitments of a run."""
  return f'commitments-{place}.txt'
