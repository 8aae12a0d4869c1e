"""Verification of bundles: everything in one is computed again and compared.

Nothing inside a bundle can show that all of it was not forged together. Only the digest of its
manifest, published or kept elsewhere, can.
"""

import dataclasses
import hashlib
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fl_dpftrl import catalogue, digests, json_files, messages, rounding
from fl_dpftrl.bundles import chain, writing
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.families import base
from fl_dpftrl.logs import keys
from fl_dpftrl.replaying import embedded, replay
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import statement as statement_lib

CAVEAT = (
  'Nothing in a bundle shows that all of it was not forged together. Compare the digest with one'
  ' that was published or kept elsewhere.'
)

_LISTED = 20
_DIGEST_LINE = 65  # bytes


class Check(NamedTuple):
  """One check of a bundle.

  Attributes:
    name: what was checked.
    found: sentences about what does not fit; the first 20, and how many more.
    detail: what was compared, where everything fits.
  """

  name: str
  found: tuple[str, ...]
  detail: str = ''

  @property
  def passed(self) -> bool:
    """True if everything fits."""
    return not self.found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
  """Result of the checks of a bundle.

  Attributes:
    digest: SHA-256 of the manifest, in hexadecimal.
    compared: whether the digest was compared with one from elsewhere.
    checks: all checks.
    made_with: releases that made the bundle, by package.
    checked_with: releases that checked it.
  """

  digest: str
  compared: bool
  checks: tuple[Check, ...]
  made_with: dict[str, str]
  checked_with: dict[str, str]

  @property
  def passed(self) -> bool:
    """True if every check passed."""
    return all(check.passed for check in self.checks)

  @property
  def other_releases(self) -> tuple[str, ...]:
    """Packages whose releases differ; last digits of figures may differ for that reason."""
    both = self.made_with.keys() | self.checked_with.keys()
    return tuple(n for n in sorted(both) if self.made_with.get(n) != self.checked_with.get(n))

  def to_json(self) -> json_files.Object:
    """Returns the result, with each check."""
    return {
      'passed': self.passed,
      'digest': self.digest,
      'compared': self.compared,
      'checks': [
        {'name': c.name, 'passed': c.passed, 'found': list(c.found), 'detail': c.detail}
        for c in self.checks
      ],
      'made_with': self.made_with,
      'checked_with': self.checked_with,
      'caveat': None if self.compared else CAVEAT,
    }


def verify(
  folder: str | os.PathLike[str],
  *,
  digest: str | None = None,
  engine: replay.Engine = embedded.count,
  progress: Callable[[str], None] = lambda text: None,
) -> Verification:
  """Checks a bundle that `write_bundle` wrote.

  Args:
    folder: the bundle.
    digest: SHA-256 of its manifest from elsewhere, in hexadecimal; None if there is none.
    engine, progress: see `replay`.

  Raises:
    ValueError: for a folder that is no bundle, a manifest that cannot be read, and a bundle
      that has links, folders or other things than files.
    OSError: if the folder cannot be read.
  """
  if digest is not None and not re.fullmatch('[0-9a-fA-F]{64}', digest):
    raise ValueError(f'digest={messages.quoted(digest)} must be 64 hexadecimal digits')
  folder = pathlib.Path(folder).resolve()
  present = _listed(folder)
  path = folder / manifest_lib.NAME
  try:
    content = json_files.read_bytes(path, most_bytes=json_files.MOST_BYTES)
    manifest = manifest_lib.parse(content)
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error
  own = hashlib.sha256(content).hexdigest()
  checks = [_check_manifest(folder, content, manifest, present, own, digest)]
  checks.append(_check_files(folder, manifest, present))
  opened: list[runs_lib.Run] = []
  for place, entry in enumerate(manifest.runs, 1):
    checked, strategy = _check_strategy(folder, place, entry)
    checks.append(checked)
    checked, run = _check_rounds(folder, place, entry, strategy, progress)
    checks.append(checked)
    opened += [run] if run else []
  checks += _check_statement(folder, manifest, opened, checks, engine, progress)
  return Verification(
    digest=own,
    compared=digest is not None,
    checks=tuple(checks),
    made_with=dict(manifest.packages),
    checked_with=dict(manifest_lib.packages()),
  )


def _listed(folder: pathlib.Path) -> set[str]:
  """Returns the names in a bundle; ValueError unless they are regular files, one a manifest."""
  names = set()
  with os.scandir(folder) as entries:
    for entry in entries:
      if not entry.is_file(follow_symlinks=False):
        raise ValueError(f'{folder}: {messages.quoted(entry.name)} is no regular file')
      names.add(entry.name)
  if manifest_lib.NAME not in names:
    raise ValueError(f'{folder}: has no {manifest_lib.NAME}, so it is no bundle')
  return names


def _check_manifest(
  folder: pathlib.Path,
  content: bytes,
  manifest: manifest_lib.Manifest,
  present: set[str],
  own: str,
  digest: str | None,
) -> Check:
  found = []
  if manifest_lib.SEAL not in present:
    found.append(f'{manifest_lib.SEAL} is missing')
  else:
    expected = manifest_lib.seal(content)
    with open(folder / manifest_lib.SEAL, 'rb') as stream:
      if stream.read(len(expected) + 1) != expected:
        found.append(f'{manifest_lib.SEAL} is not of this {manifest_lib.NAME}')
  if content != manifest.to_bytes():
    found.append(f'{manifest_lib.NAME} is not written as write_bundle writes it')
  if digest is not None and digest.lower() != own:
    found.append(f'its digest is {own}, not {digest.lower()}')
  return Check('manifest', tuple(found), f'SHA-256 {own}')


def _check_files(folder: pathlib.Path, manifest: manifest_lib.Manifest, present: set[str]) -> Check:
  found = []
  for name, stated in manifest.files.items():
    if name not in present:
      found.append(f'{name} is missing')
    elif (size := os.path.getsize(folder / name)) != stated.bytes:
      found.append(f'{name} has {size} bytes, not {stated.bytes}')
    elif (file := manifest_lib.File.of(folder / name)).sha256 != stated.sha256:
      found.append(f'{name} has the digest {file.sha256}, not {stated.sha256}')
  for name in sorted(present - manifest.files.keys() - {manifest_lib.NAME, manifest_lib.SEAL}):
    found.append(f'{messages.quoted(name)} is not in the manifest')
  return Check('files', _shortened(found), f'{len(manifest.files)} files')


def _check_strategy(
  folder: pathlib.Path, place: int, entry: manifest_lib.Run
) -> tuple[Check, base.Strategy | None]:
  name = f'strategy of run {place}'
  try:
    strategy = catalogue.load(folder / entry.strategy).strategy
  except ValueError as error:
    return Check(name, (_sentence(error),)), None
  digest = digests.strategy_digest(strategy)
  found = ()
  if digest != entry.strategy_sha256:
    found = (f'the digest of the strategy is {digest}, not {entry.strategy_sha256}',)
  return Check(name, found, f'{strategy.family}, its figures computed again'), strategy


def _check_rounds(
  folder: pathlib.Path,
  place: int,
  entry: manifest_lib.Run,
  strategy: base.Strategy | None,
  progress: Callable[[str], None],
) -> tuple[Check, runs_lib.Run | None]:
  name = f'rounds of run {place}'
  if strategy is None:
    return Check(name, ('not checked, as the strategy cannot be read',)), None
  try:
    run = entry.open(folder, strategy)
    found = _chain(folder, entry, run, progress)
  except (ValueError, OSError) as error:
    return Check(name, (_sentence(error),)), None
  return Check(name, found, f'{run.log.num_rounds} chained digests computed again'), run


def _chain(
  folder: pathlib.Path, entry: manifest_lib.Run, run: runs_lib.Run, progress: Callable[[str], None]
) -> tuple[str, ...]:
  """Compares the chained digests with the log; returns what does not fit."""
  first, last = None, ''
  with open(folder / entry.rounds, 'rb') as stream:
    for t, last in enumerate(chain.of(run, progress)):
      if first is None and stream.read(_DIGEST_LINE) != f'{last}\n'.encode():
        first = t
    more = first is None and stream.read(1)
  found = []
  if first is not None:
    found.append(f'round {first} is the first whose devices do not give its digest')
  if more:
    found.append(f'{entry.rounds} has digests of more rounds than {run.log.num_rounds}')
  if last != entry.last_digest:
    found.append(f'the last digest is {last}, not {entry.last_digest}')
  for shard in run.log.shards if len(run.log.shards) == 1 else ():
    if shard.metadata.get(keys.CHAIN_KEY, last) != last:
      found.append('the rows are not those whose digest the writer of the log computed')
  return tuple(found)


def _check_statement(
  folder: pathlib.Path,
  manifest: manifest_lib.Manifest,
  opened: list[runs_lib.Run],
  before: list[Check],
  engine: replay.Engine,
  progress: Callable[[str], None],
) -> tuple[Check, ...]:
  if len(opened) < len(manifest.runs):
    return (Check('statement', ('not checked, as a log or strategy cannot be read',)),)
  try:
    statement = writing.statement_of(opened, manifest.guarantee, engine, progress)
    stored = json_files.read(folder / manifest_lib.STATEMENT)
  except (ValueError, OSError) as error:
    return (Check('statement', (_sentence(error),)),)
  found: dict[str, str] = {}
  _compare('', stored, writing.document(statement, folder), found)
  detail = 'every figure computed again, to the last digit'
  places = sorted(found, key=lambda place: (place.count('.') + place.count('['), place))
  differing = tuple(found[place] for place in places)
  fits = all(check.passed for check in before) and not differing
  return Check('statement', _shortened(differing), detail), _check_guarantee(statement, fits)


def _check_guarantee(statement: statement_lib.Statement, fits: bool) -> Check:
  """Checks that a statement guarantees something, and is of a bundle that fits."""
  found = []
  if not fits:
    found.append('not confirmed, as the bundle does not fit')
  epsilon = statement.worst_case.epsilon
  if statement.void_reason:
    found.append(_sentence(f'it is void: {statement.void_reason}'))
  if epsilon is None:
    found.append('it is void: no noise was added')
  if statement.declared is not None and not statement.declared.holds:
    found.append('the declared schema was not kept')
  shown = '' if epsilon is None else rounding.up(epsilon)
  detail = f'worst case ε = {shown} at δ = {rounding.exact(statement.delta)}'
  return Check('guarantee', tuple(found), detail)


def _compare(place: str, stored: Any, own: Any, found: dict[str, str]) -> None:
  """Adds a sentence for each value that differs, of the same type and to the last digit."""
  if isinstance(stored, dict) and isinstance(own, dict):
    for name in sorted(stored.keys() | own.keys()):
      inner = f'{place}.{name}' if place else name
      if name not in own or name not in stored:
        found[inner] = f'{messages.quoted(inner)} is {"missing" if name in own else "unknown"}'
      else:
        _compare(inner, stored[name], own[name], found)
  elif isinstance(stored, list) and isinstance(own, list) and len(stored) == len(own):
    for index, (one, other) in enumerate(zip(stored, own)):
      _compare(f'{place}[{index}]', one, other, found)
  elif type(stored) is not type(own) or stored != own:
    found[place] = (
      f'{place or "the statement"} is {messages.quoted(stored)}, but the log and the strategy'
      f' give {messages.quoted(own)}'
    )


def _shortened(found: Sequence[str]) -> tuple[str, ...]:
  more = len(found) - _LISTED
  return (*found[:_LISTED], *([f'and {more} more'] if more > 0 else []))


def _sentence(error: object) -> str:
  return messages.one_line(error)
