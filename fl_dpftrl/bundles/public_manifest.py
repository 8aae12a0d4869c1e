"""The manifest of a public bundle: parameters, and n, b and k of the log."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fl_dpftrl.bundles import entries
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import runs as runs_lib

FORMAT = 'fl_dpftrl.public_bundle'


class StrategyFile(NamedTuple):
  """A strategy, the first round with it, and SHA-256 of its family and parameters."""

  round: int
  file: str
  sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicRun:
  """Published parameters of a run, and n, b and k of its log.

  Attributes:
    num_rounds: n, rows of noise consumed.
    min_sep: b, rounds; the least separation in the log.
    max_participations: k, rounds; the most of any device in the log.
    noise_multiplier: std(Z) / clip_norm in round 0.
    changes: (round, noise multiplier from that round on).
    restarts: rounds at which the noise was restarted.
    declared: schema that was declared before the run; None if none was.
    strategies: that of round 0, and those of restarts with another one.
    commitments: name of the file with a commitment to each round.
  """

  num_rounds: int
  min_sep: int
  max_participations: int
  noise_multiplier: float
  changes: tuple[tuple[int, float], ...]
  restarts: tuple[int, ...]
  declared: schemas.MinSep | None
  strategies: tuple[StrategyFile, ...]
  commitments: str

  def __post_init__(self):
    if not self.strategies or self.strategies[0].round:
      raise ValueError('strategies must begin with that of round 0')
    schemas.MinSep(
      num_rounds=self.num_rounds, min_sep=self.min_sep, max_participations=self.max_participations
    )  # ValueError for numbers that are no schema.

  @property
  def schema(self) -> schemas.MinSep:
    """The strictest schema that every device kept to, as the bundle says."""
    return schemas.MinSep(
      num_rounds=self.num_rounds, min_sep=self.min_sep, max_participations=self.max_participations
    )

  @property
  def holds(self) -> bool:
    """True if n, b and k keep to the declared schema."""
    if self.declared is None or self.declared.num_rounds != self.num_rounds:
      return False
    apart = self.max_participations == 1 or self.min_sep >= self.declared.min_sep
    return apart and self.max_participations <= self.declared.participations

  def noise(self, strategies: Sequence[base.Strategy]) -> runs_lib.Noise:
    """Returns the noise of the run; ValueError if a parameter is out of range."""
    first, *later = strategies
    return runs_lib.Noise(
      num_rounds=self.num_rounds,
      strategy=first,
      multiplier=self.noise_multiplier,
      changes=self.changes,
      restarts=self.restarts,
      later_strategies=tuple(
        (entry.round, strategy) for entry, strategy in zip(self.strategies[1:], later, strict=True)
      ),
    )

  def to_json(self) -> json_files.Object:
    """Returns the run as the manifest has it."""
    fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
    return {
      **fields,
      'declared': manifest_lib.schema_entry(self.declared),
      'strategies': [entry._asdict() for entry in self.strategies],
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicManifest:
  """Content of a public bundle; see `Manifest`."""

  made_by: str
  packages: Mapping[str, str]
  guarantee: manifest_lib.Guarantee
  runs: tuple[PublicRun, ...]
  files: Mapping[str, manifest_lib.File]

  def to_bytes(self) -> bytes:
    """Returns the manifest's file."""
    return manifest_lib.encoded(FORMAT, self, [run.to_json() for run in self.runs])


def is_of(content: bytes) -> bool:
  """Returns whether a file claims to be the manifest of a public bundle."""
  try:
    document = json_files.parse(content)
  except ValueError:
    return False
  return isinstance(document, dict) and document.get('format') == FORMAT


def parse(content: bytes) -> PublicManifest:
  """Reads the manifest's file; ValueError as for that of a bundle with logs."""
  document, files = manifest_lib.head(content, FORMAT)
  runs = tuple(map(_run, entries.take(document, 'runs', list)))
  for place, run in enumerate(runs, 1):
    own = (manifest_lib.strategy_name(place, entry.round) for entry in run.strategies)
    manifest_lib.check_names(
      (run.commitments, *(entry.file for entry in run.strategies)),
      (manifest_lib.commitments_name(place), *own),
    )
  manifest_lib.check_named(
    files, (name for run in runs for name in (run.commitments, *(s.file for s in run.strategies)))
  )
  return PublicManifest(
    made_by=manifest_lib.made_by(document),
    packages=document['packages'],
    guarantee=manifest_lib.guarantee(document),
    runs=runs,
    files=files,
  )


def _run(entry: Any) -> PublicRun:
  entries.check_keys(entries.of_kind('runs', entry, dict), entries.names(PublicRun))
  return PublicRun(
    num_rounds=entries.take(entry, 'num_rounds', int),
    min_sep=entries.take(entry, 'min_sep', int),
    max_participations=entries.take(entry, 'max_participations', int),
    noise_multiplier=float(entries.take(entry, 'noise_multiplier', entries.NUMBER)),
    changes=tuple(map(entries.change, entries.take(entry, 'changes', list))),
    restarts=tuple(
      entries.of_kind('restarts', t, int) for t in entries.take(entry, 'restarts', list)
    ),
    declared=manifest_lib.schema(entry['declared']),
    strategies=tuple(map(_strategy, entries.take(entry, 'strategies', list))),
    commitments=entries.check_name(entry['commitments']),
  )


def _strategy(entry: Any) -> StrategyFile:
  entries.check_keys(entries.of_kind('strategies', entry, dict), set(StrategyFile._fields))
  return StrategyFile(
    entries.take(entry, 'round', int),
    entries.check_name(entry['file']),
    entries.digest(entry, 'sha256'),
  )
