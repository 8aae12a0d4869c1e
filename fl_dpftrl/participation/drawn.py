"""Participations that are drawn: batches of examples, and secret bins.

The figures are those of the accountant for the stated scheme, which a log can only refute.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation import protocol, registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

BATCHES, ORDERS, BINS = 16, 17, 18
"""Keys of simulated draws, by what is drawn."""

Generator = Callable[..., np.random.Generator]
"""Returns the generator of a key, and of numbers such as the round."""

Relation = tuple[float, str, str]
"""Largest change of a round's sum by one example, in clip norms; pair; adjacency in words."""

Problems = list[tuple[schemas.Schema, dict[str, int]]]
"""Schemas, each with the sizes of a mechanism by keyword."""

_NO_LOG_SHOWS = (
  'that it was drawn so, in secret and whatever the data, no log shows: this one has nothing that'
  ' such draws rule out, however improbable they make it'
)
_LOG_IS_SECRET = (
  'the log, which tells whose examples were drawn, is as secret as the draws, and so is what was'
  ' counted in it, min_sep and max_participations too; worst case and observed take the rounds of'
  ' the log as given, and need no secret draws'
)


class Drawn:
  """Base class of a participation that the server draws: a round may have any number of devices.

  A subclass is a frozen dataclass, and defines `schema`, `assumption` (the draws in words),
  `guarantee`, `least_noise`, `refutations` and `within`.
  """

  kind: ClassVar[str]
  part: ClassVar[str]
  is_drawn: ClassVar[bool] = True
  is_secret: ClassVar[bool] = False
  subject: ClassVar[str] = protocol.SERVER
  unit: ClassVar[str] = 'example'
  needs_rows: ClassVar[bool] = True
  is_min_sep: ClassVar[bool] = False
  budget: ClassVar[None] = None
  num_rounds: int

  @property
  def schema(self) -> schemas.Schema:
    """Participation schema, whatever was drawn."""
    raise NotImplementedError

  @property
  def gated(self) -> schemas.Schema | None:
    """None: the server draws, and turns nobody away."""
    return None

  @property
  def num_rows(self) -> int:
    return self.num_rounds

  @property
  def assumption(self) -> str:
    """States in words how participation must have been drawn."""
    raise NotImplementedError

  def within(self, num_rounds: int) -> Any:
    """Returns the scheme of a run that has had so many rounds."""
    raise NotImplementedError

  def refutations(self, happened: participation_counts.RunCounts) -> list[str]:
    """Returns reasons why counts of a log contradict the scheme."""
    raise NotImplementedError

  def drawer(self, generator: Generator, num_devices: int | None) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to its simulated cohort, int64, numbers from 0."""
    raise NotImplementedError

  def for_claim(self, strategy: base.Strategy) -> Any:
    """Returns itself."""
    return self

  def after(self, num_rounds: int) -> Any:
    """Returns the scheme of the rounds that there were; ValueError for more than all."""
    if num_rounds > self.num_rounds:
      raise ValueError(f'sampling is of {self.num_rounds} rounds, but the log has {num_rounds}')
    return self.within(num_rounds)

  def for_bands(self, strategy: base.Strategy) -> Any:
    """Returns the scheme as it amplifies a strategy best."""
    return self

  def problems(self, size: str | None, *, is_fixed: bool = False) -> Problems:
    """Returns what to optimise for, of which one has the least noise.

    Args:
      size: keyword of the mechanism's size; None without one, or `is_fixed` where none is tried.
    """
    return [(self.schema, {})]

  def rounds_may_follow(self, num_rounds: int) -> bool:
    """Returns False: the guarantee is of the rounds that there were."""
    return False

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the sensitivity of a device whose draws are known."""
    return sensitivities.sensitivity(strategy, self.schema)

  def gate(self, strategy: base.Strategy) -> protocol.Gate | None:
    """Returns None: whoever is drawn takes part."""
    return None

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns none: no participation of a single device refutes draws."""
    return np.zeros(rounds.size, bool)

  def contradictions(
    self, happened: participation_counts.RunCounts, recorded: protocol.Recorded, violators: int
  ) -> list[str]:
    """Returns refutations, after that the log records another participation."""
    reasons = self.refutations(happened)
    # Of rounds that were planned, a run may have had fewer.
    if recorded and recorded | {'num_rounds': self.num_rounds} != registry.to_json(self):
      shown = messages.one_line(json.dumps(recorded), 200)
      reasons.insert(0, f'its own file says that participation was drawn as {shown}')
    return reasons

  def voided_by(self, recorded: Any) -> str | None:
    """Returns None: another participation that a log records is a contradiction."""
    return None

  def assumptions(self, adjacency: str) -> tuple[str, ...]:
    """Returns the schema of the draws and the draws in words."""
    return (f'{self.part}: {self.schema.assumption}', f'{self.part}: {self.assumption}')

  def verdicts(self, recorded: Mapping[str, bool], holds: bool) -> tuple[str, ...]:
    """Returns that the log contradicts the draws if it does."""
    why = 'THE LOG CONTRADICTS THE SAMPLING that was stated, so that nothing is guaranteed here'
    return () if holds else (f'{self.part}: {why}',)

  @property
  def extent(self) -> str:
    return f'{self.num_rounds} rounds'

  @property
  def broken(self) -> str:
    """That the log is not of such draws, in words."""
    return f'the log contradicts --sampling={self.kind}'

  def warning(self, reason: str | None) -> str:
    """Returns the warning that the log contradicts the draws."""
    return (
      f'THE LOG CONTRADICTS --sampling={self.kind}, so nothing is guaranteed under {self.part}:'
      f' {reason}'
    )

  def adaptivity(self, end: str) -> str:
    """Returns that the end of the run must not depend on releases."""
    return f'{self.part} assumes that {end} did not depend on what was released'

  def summary(self) -> json_files.Object:
    """Returns the attributes of the scheme, and the draws in words."""
    fields = registry.to_json(self) | {'assumption': self.assumption}
    fields = {'sampling': fields.pop('kind'), **fields}
    del fields['num_rounds']
    return fields

  def fields(self, strategy: base.Strategy) -> json_files.Object:
    """Returns the fields of the scheme, with its number of rounds."""
    fields = {'num_rounds': self.num_rounds, **self.summary()}
    del fields['assumption']
    return fields

  def together(self, others: Sequence[Any]) -> Any:
    """Returns itself: guarantees of draws are not composed over several runs."""
    return self

  def check_public(self) -> None:
    """Raises nothing: the draws need not be secret."""

  def flags(self, is_recorded: bool) -> list[str]:
    """Returns the flags of the scheme."""
    fields = registry.to_json(self)
    del fields['num_rounds']
    return [f'--sampling={fields.pop("kind")}', *(f'--{n}={v}' for n, v in fields.items())]


class Secret(Drawn):
  """Base class of secret draws. A subclass defines `relations`, by adjacency."""

  part: ClassVar[str] = protocol.AMPLIFIED
  is_secret: ClassVar[bool] = True
  relations: ClassVar[Mapping[str, Relation]]

  def relation(self, adjacency: str) -> Relation:
    """Returns the effect of one example; raises ValueError if no bound is known."""
    if adjacency not in self.relations:
      raise ValueError(
        f'adjacency must be one of {", ".join(self.relations)} where participation is drawn by'
        f' {type(self).__name__}, got {adjacency!r}: no bound is known'
      )
    return self.relations[adjacency]

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    """Raises ValueError for a group, releases in whole numbers, or an adjacency without a bound."""
    refused = f'is refused with participation that is drawn by {self.kind}:'
    if terms.group_size != 1:
      why = 'each is drawn by itself, and a multiple of the sensitivity bounds no group; use 1'
      raise ValueError(f'group_size={terms.group_size} {refused} {why}')
    if terms.num_coordinates is not None:
      why = 'the rounding of whole numbers is not bounded; leave it out'
      raise ValueError(f'num_coordinates={terms.num_coordinates} {refused} {why}')
    self.relation(terms.adjacency)

  @property
  def conditions(self) -> tuple[str, ...]:
    """Assumptions of a guarantee with these draws, in words, but for the adjacency."""
    raise NotImplementedError

  def assumptions(self, adjacency: str) -> tuple[str, ...]:
    """Returns the conditions, the adjacency, and that the log is secret."""
    sentences = (*self.conditions, self.relation(adjacency)[2], _LOG_IS_SECRET)
    return tuple(f'{self.part}: {sentence}' for sentence in sentences)

  def verdicts(self, recorded: Mapping[str, bool], holds: bool) -> tuple[str, ...]:
    """Returns what no log shows of draws, or that this one contradicts them."""
    return super().verdicts(recorded, holds) or (f'{self.part}: {_NO_LOG_SHOWS}',)

  def check_public(self) -> None:
    """Raises ValueError: no figure of the log may be published."""
    raise ValueError(
      'participation that was drawn in secret has no public report: least separation and most'
      ' participations in the log are as secret; publish what account says of the sampling'
    )


def target(epsilon: float | None, rho: float | None) -> float:
  """Returns the ε that noise is to meet; ValueError without one, and for ρ."""
  if rho is not None or epsilon is None:
    raise ValueError(
      f'rho={rho}: give epsilon in its place, as secret draws are no single Gaussian release'
    )
  checks.positive(epsilon=epsilon)
  return epsilon
