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
from typing import Any, NamedTuple

from fl_dpftrl import version
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.bundles import entries
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import noise_record, reader_program
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
_ARRAYS = re.compile(r'\.[0-9a-f]+\.npz\Z')
_LOG = re.compile(r'log-([1-9][0-9]{0,8})-([1-9][0-9]{0,8})(\..+)?')
_LATER_STRATEGY = re.compile(r'strategy-([1-9][0-9]{0,8})-([1-9][0-9]{0,8})\.json')
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
    noise_multiplier: std(Z) / clip_norm in round 0.
    changes: (round, noise multiplier from that round on).
    restarts: rounds at which the noise was restarted.
    declared: schema that was declared before the run; None too if none was.
  """

  layout: layout_lib.Layout | None
  num_rounds: int | None
  noise_multiplier: float | None
  changes: tuple[tuple[int, float], ...] | None
  restarts: tuple[int, ...] | None
  declared: schemas.MinSep | None

  @classmethod
  def published(cls, run: runs_lib.Run) -> 'Run':
    """Returns the arguments of a run in a public bundle."""
    return cls(
      layout=None,
      num_rounds=run.log.num_rounds,
      noise_multiplier=float(run.noise.noise_multiplier),
      changes=run.noise.changes,
      restarts=run.noise.restarts,
      declared=run.declared_schema and entries.canonical(run.declared_schema),
    )

  @classmethod
  def of(cls, run: runs_lib.Run) -> 'Run':
    """Returns the arguments of a run beside its log."""
    full, log = cls.published(run), run.log
    stated = noise_record.read(log.metadata).until(log.num_rounds)
    rounds_known = log.num_rounds_assumed or log.shards[0].num_rounds is not None
    same = lambda value, other: None if value == other else value
    return cls(
      layout=log.layout,
      num_rounds=None if rounds_known else full.num_rounds,
      noise_multiplier=same(full.noise_multiplier, stated.parts[0].noise_multiplier),
      changes=same(full.changes, stated.multiplier_changes),
      restarts=same(full.restarts, stated.restarts),
      declared=None if run.schema_in_log else full.declared,
    )

  def to_json(self) -> json_files.Object:
    """Returns the run as the manifest has it."""
    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    layout = self.layout and self.layout._asdict()
    return {**fields, 'layout': layout, 'declared': entries.schema_entry(self.declared)}

  def open(self, paths: list[pathlib.Path], strategy: base.Strategy) -> runs_lib.Run:
    """Opens the run's log, with its noise.

    Raises:
      LogError: if the log cannot be believed.
      ValueError: if an argument is out of range, or repeats what the log states.
    """
    log = log_lib.read_log(
      paths, num_rounds=self.num_rounds, layout=self.layout or layout_lib.PLAIN
    )
    run = runs_lib.Run.of(
      log,
      strategy,
      noise_multiplier=self.noise_multiplier,
      changes=self.changes,
      restarts=self.restarts,
      declared_schema=self.declared,
    )
    if run.declared_schema is not None:
      run = dataclasses.replace(run, declared_schema=entries.canonical(run.declared_schema))
    own = Run.of(run)
    for field in dataclasses.fields(self):
      if getattr(own, field.name) != getattr(self, field.name):
        raise ValueError(f'{field.name} must be null, as the log states it')
    return run

  def noise(
    self, strategies: list[tuple[int, base.Strategy]], asserted: json_files.Object
  ) -> run_noise.RunNoise:
    """Returns the noise of a public run; ValueError if an argument is out of range.

    Args:
      strategies: each with the first round with it; that of round 0 first.
      asserted: facts of the run in the statement, which alone has its clip norms.
    """
    if self.num_rounds is None or self.noise_multiplier is None:
      raise ValueError('num_rounds and noise_multiplier must be there, as there is no log')
    (_, first), *others = strategies
    later: dict[int, base.Strategy] = dict(others)
    for t in sorted(later.keys() - set(self.restarts or ())):
      raise ValueError(f'restarts must have round {t}, from which on there is another strategy')
    return run_noise.RunNoise.of(
      self.num_rounds,
      first,
      self.noise_multiplier,
      clip_norm=asserted.get('clip_norm'),
      changes=self.changes or (),
      clip_norm_changes=asserted.get('clip_norm_changes', ()),
      restarts=[(t, later.get(t)) for t in self.restarts or ()],
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
  """Content of a bundle.

  Attributes:
    public: whether it is of a public bundle.
    made_by: release that wrote the bundle.
    packages: release of Python and of each package that computes figures.
    guarantee: arguments of `replay` for all runs together.
    runs: arguments of each run.
    files: the files by name, without the manifest and its digest.
  """

  public: bool
  made_by: str
  packages: Mapping[str, str]
  guarantee: Guarantee
  runs: tuple[Run, ...]
  files: Mapping[str, File]

  def to_bytes(self) -> bytes:
    """Returns the manifest's file."""
    document = {
      'format': PUBLIC_FORMAT if self.public else FORMAT,
      'version': VERSION,
      'made_by': self.made_by,
      'packages': dict(self.packages),
      'guarantee': dataclasses.asdict(self.guarantee),
      'runs': [run.to_json() for run in self.runs],
      'files': {name: file._asdict() for name, file in self.files.items()},
    }
    return (json.dumps(document, indent=2, allow_nan=False) + '\n').encode()

  def logs(self, place: int) -> list[str]:
    """Returns the names of a run's log files, in order; runs count from 1."""
    return [name for _, name in self._logs.get(place, ())]

  def strategies(self, place: int) -> list[tuple[int, str]]:
    """Returns the first round with each strategy of a run, and the name of its file."""
    later = self._later_strategies.get(place, ()) if self.public else ()
    return [(0, strategy_name(place)), *later]

  def check_files(self) -> None:
    """Raises ValueError unless the files are those of a bundle, by their names, and no others.

    Arrays of a strategy are named by the strategy's own file.
    """
    own = {STATEMENT}
    for place in range(1, len(self.runs) + 1):
      own |= {name for _, name in self.strategies(place)}
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

  @functools.cached_property
  def _logs(self) -> dict[int, list[tuple[int, str]]]:
    return _by_run(self.files, _LOG)

  @functools.cached_property
  def _later_strategies(self) -> dict[int, list[tuple[int, str]]]:
    return _by_run(self.files, _LATER_STRATEGY)


def _by_run(names: Iterable[str], pattern: re.Pattern[str]) -> dict[int, list[tuple[int, str]]]:
  """Returns the names that have a run and another number, by run, in the order of the other."""
  found: dict[int, list[tuple[int, str]]] = {}
  for name in names:
    if match := pattern.fullmatch(name):
      found.setdefault(int(match[1]), []).append((int(match[2]), name))
  return {place: sorted(own) for place, own in found.items()}


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
  document = json_files.parse(content)
  if not isinstance(document, dict) or document.get('format') not in (FORMAT, PUBLIC_FORMAT):
    raise ValueError(f'it must be a JSON object of format {FORMAT!r} or {PUBLIC_FORMAT!r}')
  if document.get('version') == 1:
    raise ValueError(
      'version 1 of bundles is verified by release 0.1 of fl_dpftrl, not by this one'
    )
  if document.get('version') != VERSION:
    raise ValueError(f'version must be {VERSION}, got {messages.quoted(document.get("version"))}')
  entries.check_keys(document, {'format', 'version', *entries.names(Manifest)} - {'public'})
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
  public = document['format'] == PUBLIC_FORMAT
  manifest = Manifest(
    public=public,
    made_by=made_by(document),
    packages=made_with,
    guarantee=guarantee(document),
    runs=tuple(_run(entry, public) for entry in document['runs']),
    files=files,
  )
  manifest.check_files()
  return manifest


def made_by(document: json_files.Object) -> str:
  """Returns the release that wrote a bundle; ValueError unless `packages` has it too."""
  release = entries.check_release('made_by', document['made_by'])
  if release != document['packages']['fl_dpftrl']:
    raise ValueError(f'made_by is {messages.quoted(release)}, and packages have another release')
  return release


def log_name(place: int, number: int, path: str) -> str:
  """Returns the name of a file of a run's log; runs and files count from 1."""
  return f'log-{place}-{number}{reader_program.suffix_of(path)}'


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


def _run(entry: Any, public: bool) -> Run:
  entries.check_keys(entries.of_kind('runs', entry, dict), entries.names(Run))

  def given(name: str, kind: Any) -> Any:
    """Returns an argument; in a bundle with logs, None where the log states it."""
    return None if entry[name] is None and not public else entries.take(entry, name, kind)

  multiplier = given('noise_multiplier', entries.NUMBER)
  changes, restarts = given('changes', list), given('restarts', list)
  if public and entry['layout'] is not None:
    raise ValueError('layout must be null in a public bundle')
  return Run(
    layout=None if public else entries.layout(entries.take(entry, 'layout', dict)),
    num_rounds=given('num_rounds', int),
    noise_multiplier=None if multiplier is None else float(multiplier),
    changes=None if changes is None else tuple(map(entries.change, changes)),
    restarts=None
    if restarts is None
    else tuple(entries.of_kind('restarts', t, int) for t in restarts),
    declared=entries.schema(entry['declared']),
  )
