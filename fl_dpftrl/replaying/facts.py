"""Parameters of a run, and what its log shows, with a JSON form."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from fl_dpftrl import adaptive_clipping as adaptive
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import canaries, noise_record
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import counts, schemas
from fl_dpftrl.text import messages

Changes = tuple[tuple[int, float], ...]
Occurrences = tuple[tuple[int, int], ...]


class Strategy(NamedTuple):
  """Family of a strategy, and SHA-256 of its family and parameters."""

  family: str
  sha256: str


class CohortSizes(NamedTuple):
  """Devices in a round that had any."""

  least: int
  mean: float
  most: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
  """Figures counted from single devices, which are never published.

  Attributes:
    num_devices: devices that took part.
    num_participations: participations of all devices.
    rounds_without_participants: rounds with noise but without any device.
    separations: (rounds between two successive participations of a device, number of
      occurrences).
    witness: an example of min_sep; None if no device took part twice, and over several runs.
    participations: (rounds that a device took part in, number of devices); None over several
      runs.
    cohort_sizes: sizes of the rounds; None over several runs.
    rounds_short_of_report_goal: rounds with fewer devices than the report goal; None without a
      goal, and over several runs.
  """

  num_devices: int
  num_participations: int
  rounds_without_participants: int
  separations: Occurrences
  witness: counts.Witness | None = None
  participations: Occurrences | None = None
  cohort_sizes: CohortSizes | None = None
  rounds_short_of_report_goal: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
  """Parameters of a run, and what its log shows.

  Attributes:
    num_rounds: n, rows of noise consumed.
    min_sep: b, rounds; the least separation in the log.
    max_participations: k, rounds; the most of any device in the log.
    noise_multiplier: std(Z) / clip_norm in round 0.
    strategy: the strategy in round 0.
    num_rounds_assumed: whether num_rounds rests on the last round alone.
    layout: where the log's files have their columns.
    report_goal: intended devices per round; None if not stated.
    changes: (round, noise multiplier from that round on).
    clip_norm: L2 bound on an update in round 0; None if the log lacks it.
    adaptive_clipping: rule of the clip norm after round 0; None if it is fixed.
    clip_norm_changes: (round, clip norm from that round on).
    restarts: rounds at which the noise was restarted.
    later_strategies: (round, strategy from that round on), where a restart brought another.
    canaries: devices of the log that are canaries of an audit, and hold no data.
    recorded_noise: what the log's metadata state of the noise, of `noise_record.STATED`.
    declared_schema: schema that was declared before the run, if any; a statement has its figures.
    schema_in_log: whether the log's metadata state that schema, as a guard wrote it.
    not_private_metrics: metrics that were computed from clients' data without the noise, by name.
    counted: confidential counts; None in a publishable statement.
    log: files that were read; None in a publishable statement.
  """

  num_rounds: int
  min_sep: int
  max_participations: int
  noise_multiplier: float
  strategy: Strategy
  num_rounds_assumed: bool = False
  layout: layout_lib.Layout = layout_lib.PLAIN
  report_goal: int | None = None
  changes: Changes = ()
  clip_norm: float | None = None
  clip_norm_changes: Changes = ()
  adaptive_clipping: adaptive.AdaptiveClipping | None = None
  restarts: tuple[int, ...] = ()
  later_strategies: tuple[tuple[int, Strategy], ...] = ()
  canaries: int = 0
  recorded_noise: tuple[str, ...] = ()
  declared_schema: schemas.MinSep | None = None
  schema_in_log: bool = False
  not_private_metrics: tuple[str, ...] = ()
  counted: Counted | None = None
  log: tuple[log_lib.LogFile, ...] | None = None

  @property
  def schema(self) -> schemas.MinSep:
    """The strictest schema that every device kept to."""
    return schemas.MinSep(**fields(self, 'num_rounds', 'min_sep', 'max_participations'))

  @property
  def noise_multipliers(self) -> tuple[float, ...]:
    """All noise multipliers that were in force, the first one first."""
    return (self.noise_multiplier, *(value for _, value in self.changes))

  def to_json(self) -> json_files.Object:
    """Returns the facts; those that are not known, or did not occur, are left out."""
    counted = self.counted
    optional = {
      'num_rounds_assumed': self.num_rounds_assumed or None,
      'report_goal': self.report_goal,
      'rounds_short_of_report_goal': counted and counted.rounds_short_of_report_goal,
      'changes': [list(change) for change in self.changes] or None,
      'clip_norm': self.clip_norm,
      'adaptive_clipping': self.adaptive_clipping and vars(self.adaptive_clipping),
      'clip_norm_changes': [list(change) for change in self.clip_norm_changes] or None,
      'restarts': list(self.restarts) or None,
      'later_strategies': [
        {'round': t, **strategy._asdict()} for t, strategy in self.later_strategies
      ]
      or None,
      'canaries': self.canaries or None,
      'recorded_noise': list(self.recorded_noise) or None,
      'schema_in_log': self.schema_in_log or None,
      'not_private_metrics': list(self.not_private_metrics) or None,
    }
    return {
      'num_rounds': self.num_rounds,
      **(fields(counted, 'num_devices', 'num_participations') if counted else {}),
      'min_sep': self.min_sep,
      'max_participations': self.max_participations,
      'noise_multiplier': self.noise_multiplier,
      'strategy': self.strategy._asdict(),
      **(
        {
          'separations': [list(pair) for pair in counted.separations],
          'participations': [list(pair) for pair in counted.participations or ()],
          'witness': counted.witness and counted.witness._asdict(),
          'rounds_without_participants': counted.rounds_without_participants,
          'cohort_sizes': counted.cohort_sizes and counted.cohort_sizes._asdict(),
        }
        if counted
        else {}
      ),
      **({} if self.log is None else {'log': [file._asdict() for file in self.log]}),
      **{name: value for name, value in optional.items() if value is not None},
    }


def asserted(entry: Any, num_rounds: int) -> json_files.Object:
  """Reads the facts that no other figure of a publishable statement gives.

  Args:
    entry: the facts of a run, as `to_json` gives them.
    num_rounds: rounds of the run.

  Returns:
    Arguments of `RunFacts`.

  Raises:
    ValueError: naming the fact, if one is malformed.
  """
  if not isinstance(entry, dict):
    raise ValueError(f'the facts of a run must be an object, got {messages.quoted(entry)}')
  found = {name: entry[name] for name in _ASSERTED if name in entry}
  try:
    return {name: _ASSERTED[name](value, num_rounds) for name, value in found.items()}
  except (TypeError, ValueError, AttributeError) as error:
    raise ValueError(f'a fact of a run is malformed: {messages.one_line(error)}') from error


def _true(value: Any, num_rounds: int) -> bool:
  if value is not True:
    raise ValueError(f'it must be true or left out, got {messages.quoted(value)}')
  return True


def _norm(value: Any, num_rounds: int) -> float:
  if type(value) is not float or not 0.0 < value < math.inf:
    raise ValueError(f'a clip norm must be positive and finite, got {messages.quoted(value)}')
  return value


def _norms(value: Any, num_rounds: int) -> Changes:
  result, before = [], 0
  for round_index, norm in value:
    if type(round_index) is not int or not before < round_index < num_rounds:
      raise ValueError(
        f'clip_norm_changes must be at ascending rounds, got {messages.quoted(round_index)}'
      )
    before = round_index
    result.append((round_index, _norm(norm, num_rounds)))
  return tuple(result)


def _canaries(value: Any, num_rounds: int) -> int:
  if type(value) is not int or not 0 < value <= canaries.MOST:
    raise ValueError(f'canaries must be 1 to {canaries.MOST}, got {messages.quoted(value)}')
  return value


def _names(value: Any, num_rounds: int) -> tuple[str, ...]:
  known = tuple(name for name in noise_record.STATED if name in value)
  if not known or list(known) != value:
    raise ValueError(f'recorded_noise must not be {messages.quoted(value)}')
  return known


# Facts of a publishable statement that follow from no other, and how each is read.
_ASSERTED: dict[str, Callable[[Any, int], Any]] = {
  'num_rounds_assumed': _true,
  'clip_norm': _norm,
  'clip_norm_changes': _norms,
  'adaptive_clipping': lambda value, num_rounds: adaptive.AdaptiveClipping(**value),
  'canaries': _canaries,
  'recorded_noise': _names,
  'schema_in_log': _true,
}


def fields(record: Any, *names: str) -> json_files.Object:
  """Returns the named fields of a record."""
  return {name: getattr(record, name) for name in names}
