"""Parameters of a run, and what its log shows, with a JSON form."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fl_dpftrl import adaptive_clipping as adaptive
from fl_dpftrl.accounting import arithmetic, run_noise
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import metric_names, noise_record
from fl_dpftrl.participation import counts, schemas
from fl_dpftrl.strategies import document
from fl_dpftrl.text import messages

Occurrences = tuple[tuple[int, int], ...]


class Strategy(NamedTuple):
  """Family of a strategy, and SHA-256 of its family and parameters."""

  family: str
  sha256: str

  @classmethod
  def of(cls, strategy: base.Strategy) -> 'Strategy':
    return cls(strategy.family, document.strategy_digest(strategy))


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
    cohort_sizes: sizes of the rounds that had devices; None without any, and over several runs.
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

  def to_json(self) -> json_files.Object:
    """Returns the figures of a single run."""
    short = self.rounds_short_of_report_goal
    return {
      **fields(self, 'num_devices', 'num_participations', 'rounds_without_participants'),
      'separations': [list(pair) for pair in self.separations],
      'participations': [list(pair) for pair in self.participations or ()],
      'witness': self.witness and self.witness._asdict(),
      'cohort_sizes': self.cohort_sizes and self.cohort_sizes._asdict(),
      **({} if short is None else {'rounds_short_of_report_goal': short}),
    }


class _Form(NamedTuple):
  """Origin of a fact of a run, and how it is stored.

  Attributes:
    published: whether a publishable statement has it.
    from_log: reads it from a log's metadata; None if it is not in them.
    to_json: returns it as JSON has it, unless it is the default, which is left out.
    from_json: reads it from a publishable statement, which asserts it: nothing else there gives
      it. None if something does.
  """

  published: bool
  from_log: Callable[[Mapping[str, str]], Any] | None
  to_json: Callable[[Any], Any]
  from_json: Callable[[Any], Any] | None


def _fact(
  default: Any,
  *,
  published: bool = False,
  from_log: Callable[[Mapping[str, str]], Any] | None = None,
  to_json: Callable[[Any], Any] = lambda value: value,
  from_json: Callable[[Any], Any] | None = None,
) -> Any:
  """Returns a field of `RunFacts` with its form."""
  form = _Form(published, from_log, to_json, from_json)
  return dataclasses.field(default=default, metadata={_Form: form})


def _true(value: Any) -> bool:
  if value is not True:
    raise ValueError(f'it must be true or left out, got {messages.quoted(value)}')
  return True


def _names(value: Any) -> tuple[str, ...]:
  if not value or not metric_names.are_names(value):
    raise ValueError(f'it must be a list of names, got {messages.quoted(value)}')
  return tuple(value)


def _recorded(value: Any) -> tuple[str, ...]:
  known = tuple(name for name in noise_record.STATED if name in value)
  if not known or list(known) != value:
    raise ValueError(f'it must not be {messages.quoted(value)}')
  return known


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
  """Parameters of a run, and what its log shows.

  A new fact of a run is one field here, made by `_fact`: replay, the statement's JSON, the
  publishable statement and the verification of public bundles follow from that. If figures rest
  on it, it also has a sentence in `assumptions`.

  Attributes:
    noise: the noise of its rounds.
    min_sep: b, rounds; the least separation in the log.
    max_participations: k, rounds; the most of any device in the log.
    layout: where the log's files have their columns.
    declared_schema: schema of all rounds that were declared before the run, if any; a statement has
      its figures.
    counted: confidential counts; None in a publishable statement.
    log: files that were read; None in a publishable statement.
    num_rounds_assumed: whether the number of rounds rests on the last round alone.
    report_goal: intended devices per round; None if not stated.
    adaptive_clipping: rule of the clip norm after round 0; None if it is fixed.
    recorded_noise: what the log's metadata state of the noise, of `noise_record.STATED`.
    schema_in_log: whether the log's metadata state the declared schema, as it was written before
      round 0.
    not_private_metrics: metrics that were computed from clients' data without the noise, by name.
    trusted_operations: operations that `check_process` does not pass, and whoever trained trusted.
  """

  noise: run_noise.RunNoise
  min_sep: int
  max_participations: int
  layout: layout_lib.Layout = layout_lib.PLAIN
  declared_schema: schemas.MinSep | None = None
  counted: Counted | None = None
  log: tuple[log_lib.LogFile, ...] | None = None

  num_rounds_assumed: bool = _fact(False, published=True, from_json=_true)
  report_goal: int | None = _fact(None, published=True)
  adaptive_clipping: adaptive.AdaptiveClipping | None = _fact(
    None,
    published=True,
    from_log=noise_record.read_clipping,
    to_json=vars,
    from_json=lambda value: adaptive.AdaptiveClipping(**value),
  )
  recorded_noise: tuple[str, ...] = _fact(
    (), published=True, from_log=noise_record.stated, to_json=list, from_json=_recorded
  )
  schema_in_log: bool = _fact(False, published=True, from_json=_true)
  not_private_metrics: tuple[str, ...] = _fact((), from_log=metric_names.read, to_json=list)
  trusted_operations: tuple[str, ...] = _fact(
    (),
    published=True,
    from_log=lambda metadata: metric_names.read(metadata, metric_names.TRUSTED_KEY),
    to_json=list,
    from_json=_names,
  )

  @property
  def num_rounds(self) -> int:
    """n, rows of noise consumed."""
    return self.noise.num_rounds

  @property
  def schema(self) -> schemas.MinSep:
    """The strictest schema that every device kept to."""
    return schemas.MinSep(**fields(self, 'num_rounds', 'min_sep', 'max_participations'))

  def keeps_to(self, declared: schemas.MinSep) -> bool:
    """Returns whether every device kept to a schema, which has all rounds that were declared."""
    within = self.num_rounds <= declared.num_rounds
    apart = self.max_participations == 1 or self.min_sep >= declared.min_sep
    return within and apart and self.max_participations <= declared.participations

  @functools.cached_property
  def strategy(self) -> Strategy:
    """The strategy of its rounds."""
    return Strategy.of(self.noise.strategy)

  def published(self) -> json_files.Object:
    """Returns the facts that may be published, as arguments of this class."""
    return {name: getattr(self, name) for name, form in _FORMS.items() if form.published}

  def to_json(self) -> json_files.Object:
    """Returns the facts; those that are not known, or did not occur, are left out."""
    noise = self.noise
    is_known = noise.arithmetic != arithmetic.Arithmetic()
    of_noise = {
      'clip_norm': noise.clip_norm,
      'arithmetic': noise.arithmetic.kind if is_known else None,
      'num_coordinates': noise.arithmetic.num_coordinates,
    }
    result = {
      **fields(self, 'num_rounds', 'min_sep', 'max_participations'),
      'noise_multiplier': noise.noise_multiplier,
      'strategy': self.strategy._asdict(),
      **{name: value for name, value in of_noise.items() if value is not None},
      **(self.counted.to_json() if self.counted else {}),
      **({} if self.log is None else {'log': [file._asdict() for file in self.log]}),
      **{
        name: form.to_json(getattr(self, name))
        for name, form in _FORMS.items()
        if getattr(self, name) != _DEFAULTS[name]
      },
    }
    return dict(sorted(result.items(), key=lambda item: _PLACES.get(item[0], len(_PLACES))))


# Fields in their order in JSON; others follow.
_ORDER = (
  'num_rounds',
  'num_devices',
  'num_participations',
  'min_sep',
  'max_participations',
  'noise_multiplier',
  'strategy',
  'separations',
  'participations',
  'witness',
  'rounds_without_participants',
  'cohort_sizes',
  'log',
  'num_rounds_assumed',
  'report_goal',
  'rounds_short_of_report_goal',
  'clip_norm',
  'adaptive_clipping',
)
_PLACES = {name: place for place, name in enumerate(_ORDER)}
_FACTS = {f.name: f for f in dataclasses.fields(RunFacts) if _Form in f.metadata}
_FORMS: dict[str, _Form] = {name: field.metadata[_Form] for name, field in _FACTS.items()}
_DEFAULTS = {name: field.default for name, field in _FACTS.items()}


def recorded(metadata: Mapping[str, str]) -> json_files.Object:
  """Returns the facts that a log's metadata state, as arguments of `RunFacts`.

  Raises:
    LogError: if they are malformed.
  """
  return {name: form.from_log(metadata) for name, form in _FORMS.items() if form.from_log}


def asserted(entry: json_files.Object) -> json_files.Object:
  """Returns the facts that a publishable statement asserts, as arguments of `RunFacts`.

  Args:
    entry: the facts of a run, as `to_json` gives them.

  Raises:
    ValueError: if one is malformed.
  """
  result = {}
  for name, form in _FORMS.items():
    if form.from_json and name in entry:
      try:
        result[name] = form.from_json(entry[name])
      except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f'{name} is malformed: {messages.one_line(error)}') from error
  return result


def fields(record: Any, *names: str) -> json_files.Object:
  """Returns the named fields of a record."""
  return {name: getattr(record, name) for name in names}
