"""Checks of bundles, and what all kinds of bundles have checked."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.files import json_files, paths
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.text import messages, rounding

CAVEAT = (
  'Nothing in a bundle shows that all of it was not forged together. Compare the digest with one'
  ' that was kept elsewhere: --digest=HEX.'
)

_LISTED = 20
_UNCONFIRMED = 'not confirmed, as the bundle does not fit'
_ASSUMPTIONS = 'assumptions'
# Differences are told in this order, then all others: an edited number before what follows from it.
_ORDER = (
  'strategy',
  'noise_multiplier',
  'num_rounds',
  'arithmetic',
  'num_coordinates',
  'delta',
  'adjacency',
  'group_size',
  'report_goal',
  'declared.min_sep',
  'declared.max_participations',
  'void_reason',
  'min_sep',
  'max_participations',
  'worst_case',
  'declared',
)
_OF_A_RUN = re.compile(r'runs\[[0-9]+\]\.')


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
    caveat: what the checks cannot show, beside that of a digest that was not compared.
  """

  digest: str
  compared: bool
  checks: tuple[Check, ...]
  made_with: dict[str, str]
  checked_with: dict[str, str]
  caveat: str | None = None

  @property
  def passed(self) -> bool:
    """True if every check passed."""
    return all(check.passed for check in self.checks)

  @property
  def other_releases(self) -> tuple[str, ...]:
    """Packages whose releases differ; last digits of figures may differ for that reason."""
    both = self.made_with.keys() | self.checked_with.keys()
    return tuple(n for n in sorted(both) if self.made_with.get(n) != self.checked_with.get(n))

  def caveats(self) -> tuple[str, ...]:
    """Returns what the checks cannot show, in sentences."""
    return tuple(filter(None, (None if self.compared else CAVEAT, self.caveat)))

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
      'caveat': ' '.join(self.caveats()) or None,
    }


class Opened(NamedTuple):
  """A bundle whose manifest was read.

  Attributes:
    folder: the bundle.
    names: names of its files.
    content: bytes of the manifest.
    manifest: the manifest.
    digest: SHA-256 of the manifest, in hexadecimal.
  """

  folder: pathlib.Path
  names: frozenset[str]
  content: bytes
  manifest: manifest_lib.Manifest
  digest: str


def opened(folder: str | os.PathLike[str]) -> Opened:
  """Reads the names of the files and the manifest of a bundle."""
  folder = paths.local(folder).resolve()
  with os.scandir(folder) as entries:
    files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
  if manifest_lib.NAME not in files:
    raise ValueError(f'{folder} is no bundle: {manifest_lib.NAME} is missing')
  for name, is_regular in files.items():
    if not is_regular:
      raise ValueError(f'{folder}: {messages.quoted(name)} is no regular file')
  path = folder / manifest_lib.NAME
  try:
    content = json_files.read_bytes(path)
    manifest = manifest_lib.parse(content)
  except (ValueError, OverflowError) as error:
    raise ValueError(f'{path}: {error}') from error
  return Opened(folder, frozenset(files), content, manifest, hashlib.sha256(content).hexdigest())


def of_files(bundle: Opened, digest: str | None = None) -> list[Check]:
  """Checks a bundle's manifest, and its files against that.

  Args:
    digest: SHA-256 of its manifest from elsewhere, in hexadecimal; None if there is none.
  """
  return [_check_manifest(bundle, digest), _check_files(bundle)]


def without_statement(why: object) -> list[Check]:
  """Returns the checks of a statement that cannot be computed, and of its guarantee."""
  return [Check('statement', (messages.one_line(why),)), Check('guarantee', (_UNCONFIRMED,))]


def of_guarantee(statement: statement_lib.Statement, fits: bool, condition: str = '') -> Check:
  """Checks that a statement guarantees something, and is of a bundle that fits.

  Args:
    fits: whether all other checks passed.
    condition: words after the figures, such as what they rest on.
  """
  wrong = [] if fits else [_UNCONFIRMED]
  worst, declared = statement.worst_case, statement.declared
  if statement.void_reason:
    wrong.append(messages.one_line(f'it is void: {statement.void_reason}'))
  if worst.void_reason:
    wrong.append(f'it is void: {worst.void_reason}')
  if declared is not None and not declared.holds:
    wrong.append('the declared schema was not kept')
  shown = f'worst case ε = {rounding.up(worst.epsilon())}'
  if declared is not None:
    shown += f', declared ε = {rounding.up(declared.epsilon())}'
  whom = '' if statement.group_size == 1 else f' for {statement.group_size} devices together'
  adjacency = statement.adjacency.replace('_', '-')
  detail = f'{shown} at δ = {rounding.exact(statement.delta)}, {adjacency} adjacency{whom}'
  return Check('guarantee', tuple(wrong), detail + condition)


def _check_manifest(bundle: Opened, digest: str | None) -> Check:
  wrong, own = [], bundle.digest
  if manifest_lib.SEAL not in bundle.names:
    wrong.append(f'{manifest_lib.SEAL} is missing')
  else:
    expected = manifest_lib.seal(bundle.content)
    with open(bundle.folder / manifest_lib.SEAL, 'rb') as stream:
      if stream.read(len(expected) + 1) != expected:
        wrong.append(f'{manifest_lib.SEAL} is not of this {manifest_lib.NAME}')
  if bundle.content != bundle.manifest.to_bytes():
    wrong.append(f'{manifest_lib.NAME} is not written as write_bundle writes it')
  if digest is not None and digest.lower() != own:
    wrong.append(f'its digest is {own}, not {digest.lower()}')
  return Check('manifest', tuple(wrong), f'SHA-256 {own}')


def _check_files(bundle: Opened) -> Check:
  wrong, files = [], bundle.manifest.files
  for name, stated in files.items():
    if name not in bundle.names:
      wrong.append(f'{name} is missing')
    elif (size := os.path.getsize(bundle.folder / name)) != stated.bytes:
      wrong.append(f'{name} has {size} bytes, not {stated.bytes}')
    elif (file := manifest_lib.File.of(bundle.folder / name)).sha256 != stated.sha256:
      wrong.append(f'{name} has the digest {file.sha256}, not {stated.sha256}')
  others = bundle.names - files.keys() - {manifest_lib.NAME, manifest_lib.SEAL}
  wrong += [f'{messages.quoted(name)} is not in the manifest' for name in sorted(others)]
  return Check('files', shortened(wrong), f'{len(files)} files')


def plain(value: Any) -> Any:
  """Returns a value as JSON gives it back."""
  return json.loads(json.dumps(value, allow_nan=False))


def differences(
  stored: json_files.Object,
  own: json_files.Object,
  source: str,
  beside: Mapping[str, str] = types.MappingProxyType({}),
) -> tuple[str, ...]:
  """Returns a sentence for each value that differs, in type or in the last digit.

  Args:
    source: what they were computed from.
    beside: further sentences by the name of a value, which are told with those of that value.
  """
  wrong: dict[str, str] = dict(beside)
  if isinstance(stored, dict) and isinstance(own.get(_ASSUMPTIONS), list):
    _compare_sentences(stored.get(_ASSUMPTIONS), own[_ASSUMPTIONS], source, wrong)
    stored, own = stored | {_ASSUMPTIONS: None}, own | {_ASSUMPTIONS: None}
  _compare('', stored, own, source, wrong)

  def rank(place: str) -> tuple[int, int, str]:
    own = _OF_A_RUN.sub('', place)
    order = [i for i, name in enumerate(_ORDER) if re.match(rf'{re.escape(name)}\b', own)]
    return min(order, default=len(_ORDER)), place.count('.') + place.count('['), place

  return shortened([wrong[place] for place in sorted(wrong, key=rank)])


def _compare_sentences(stored: Any, own: list[str], source: str, wrong: dict[str, str]) -> None:
  """Adds a sentence for each assumption that is missing, or that nothing gives."""
  if not isinstance(stored, list) or not all(isinstance(one, str) for one in stored):
    wrong[_ASSUMPTIONS] = 'assumptions must be a list of sentences'
    return
  for index, sentence in enumerate(own):
    if sentence not in stored:
      wrong[f'{_ASSUMPTIONS}[-{index}]'] = f'assumptions lack {messages.quoted(sentence)}'
  for index, sentence in enumerate(stored):
    if sentence not in own:
      wrong[f'{_ASSUMPTIONS}[{index}]'] = (
        f'assumptions have {messages.quoted(sentence)}, which {source} do not give'
      )
  if stored != own and not any(place.startswith(_ASSUMPTIONS) for place in wrong):
    wrong[_ASSUMPTIONS] = 'assumptions are not each there once, in their order'


def _compare(place: str, stored: Any, own: Any, source: str, wrong: dict[str, str]) -> None:
  """Adds a sentence for each value that differs, of the same type and to the last digit."""
  if isinstance(stored, dict) and isinstance(own, dict):
    for name in sorted(stored.keys() | own.keys()):
      inner = f'{place}.{name}' if place else name
      if name not in own or name not in stored:
        wrong[inner] = f'{messages.quoted(inner)} is {"missing" if name in own else "unknown"}'
      else:
        _compare(inner, stored[name], own[name], source, wrong)
  elif isinstance(stored, list) and isinstance(own, list) and len(stored) == len(own):
    for index, (one, other) in enumerate(zip(stored, own)):
      _compare(f'{place}[{index}]', one, other, source, wrong)
  elif type(stored) is not type(own) or stored != own:
    wrong[place] = (
      f'{place or "the statement"} is {messages.quoted(stored)}, but {source} give'
      f' {messages.quoted(own)}'
    )


def shortened(wrong: Iterable[str]) -> tuple[str, ...]:
  """Returns the first few sentences, and how many more there are."""
  wrong = list(wrong)
  more = len(wrong) - _LISTED
  return (*wrong[:_LISTED], *([f'and {more} more'] if more > 0 else []))
