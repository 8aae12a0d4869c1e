"""Settings of a run, with defaults by the number of people. It needs no other package."""

from __future__ import annotations  # What they name needs other packages.

import dataclasses
import math
from typing import Any

import fl_dpftrl as dpftrl

MOMENTUM = 0.9
ROUNDS = 14


def _number(default: Any, help: str, most: float = math.inf, *, least: int = 1) -> Any:
  """Returns a field whose values are whole numbers from `least` to `most`."""
  metadata = dict(help=help, kind=int, least=least, most=most)
  return dataclasses.field(default=default, metadata=metadata)


def _positive(default: Any, help: str, below: float = math.inf) -> Any:
  """Returns a field whose values are numbers above 0."""
  return dataclasses.field(default=default, metadata=dict(help=help, kind=float, most=below))


def _one_of(default: str, help: str, *choices: str) -> Any:
  return dataclasses.field(default=default, metadata=dict(help=help, kind=str, choices=choices))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Settings of a run, each of which is a flag; ε = ∞ is a run without noise."""

  epsilon: float = _positive(2.0, 'ε of the run with noise')
  delta: float = _positive(1e-6, 'δ', 1.0)
  mechanism: str = _one_of('blt', 'kind of noise', 'blt', 'identity', 'tree_online', 'banded')
  rounds: int = _number(ROUNDS, 'number of rounds', 10_000)
  rounds_per_person: int = _number(1, 'most rounds of a person, evenly apart', 10_000)
  cohort: int = _number(40, 'people of a round')
  tokens: int = _number(64, 'tokens of a block of text', 8192, least=2)
  blocks: int = _number(1, "most blocks of a person, whose update is the blocks' mean", 10_000)
  layers: int = _number(15, 'last layers that get additions')
  rank: int = _number(4, 'rank of the additions', 1024)
  clip_norm: float = _positive(0.1, "L2 bound on a person's update")
  clip_quantile: float | None = _positive(None, 'quantile of norms that it follows', 1.0)
  server_optimizer: str = _one_of('sgd', "the server's; sgd has momentum 0.9", 'sgd', 'adam')
  learning_rate: float | None = _positive(None, "the server's (default: by the noise)")
  seed: int = _number(0, 'seed of cohorts and fixed factors', 2**32, least=0)
  private_loss: bool = dataclasses.field(
    default=False, metadata=dict(help="release each round's mean loss, with noise", kind=bool)
  )

  @property
  def min_sep(self) -> int:
    """Rounds from one participation of a person to the next."""
    return math.ceil(self.rounds / self.rounds_per_person)

  @property
  def participation(self) -> dpftrl.MinSep:
    """The schema that people keep to."""
    return dpftrl.MinSep(self.rounds, self.min_sep, math.ceil(self.rounds / self.min_sep))

  @property
  def workload(self) -> dpftrl.Workload:
    """Workload of the server's momentum."""
    return dpftrl.Workload(momentum=MOMENTUM)

  @property
  def clipping(self) -> float | dpftrl.AdaptiveClipping:
    """The clip norm, or the rule that it follows."""
    if self.clip_quantile is None:
      return self.clip_norm
    return dpftrl.AdaptiveClipping(self.clip_norm, self.clip_quantile)


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def check(given: dict[str, Any]) -> None:
  """Raises ValueError, naming the flag, for a setting out of range."""
  for name, value in given.items():
    limits = FIELDS[name].metadata
    kind, most, least = (limits.get(key) for key in ('kind', 'most', 'least'))
    limit = (
      ''
      if most in (None, math.inf)
      else f' and {"at most" if least is not None else "below"} {most:g}'
    )
    if kind is float and not 0.0 < value < most:
      raise ValueError(f'--{name}={value} must be a number above 0{limit}')
    if kind is int and not least <= value <= most:
      raise ValueError(f'--{name}={value} must be at least {least}{limit}')
  if given.get('rounds_per_person', 1) > (rounds := given.get('rounds', ROUNDS)):
    raise ValueError(
      f'--rounds_per_person={given["rounds_per_person"]} is more than {rounds} rounds'
    )


def chosen(num_people: int, given: dict[str, Any], most: int | None = None) -> Settings:
  """Returns settings for a number of people: those that are given, and else the defaults.

  | people | rounds of a person | blocks | rank |
  |---|---|---|---|
  | below 80 | 14 | 4 | 1 |
  | below 150 | 7 | 4 | 1 |
  | below 400 | 2 | 2 | 2 |
  | more | 1 | 1 | 4 |

  A round has as many people as there can be. Fewer people come more often, as noise grows more
  slowly with their rounds than the sum of updates, and train fewer numbers, which have less noise.

  Args:
    num_people: people who train.
    given: settings by name.
    most: people of a round by default; None for as many as there can be.

  Raises:
    ValueError: for settings that do not fit each other or the people.
  """
  check(given)
  rows = ((80, 14, 4, 1), (150, 7, 4, 1), (400, 2, 2, 2), (math.inf, 1, 1, 4))
  _, passes, blocks, rank = next(row for row in rows if num_people < row[0])
  rounds = given.get('rounds', ROUNDS)
  defaults = dict(rounds_per_person=min(passes, rounds), blocks=blocks, rank=rank)
  defaults['clip_norm'] = 0.05 * given.get('rank', rank) ** 0.5  # As updates grow with the rank.
  settings = Settings(**defaults | given)
  largest = num_people // settings.min_sep
  if not largest:
    raise ValueError(
      f'{num_people} people are too few for {settings.min_sep} rounds with other people each: give'
      f' --rounds_per_person={math.ceil(rounds / num_people)} or more, or fewer --rounds'
    )
  if given.get('cohort', 0) > largest:
    raise ValueError(
      f'--cohort={settings.cohort} must be at most {largest}: {num_people} people take part in'
      f' {settings.rounds_per_person} of {settings.rounds} rounds each'
    )
  return dataclasses.replace(settings, cohort=given.get('cohort', min(largest, most or largest)))
