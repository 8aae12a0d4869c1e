"""Settings of a run, with defaults by the number of people. It needs no other package."""

from __future__ import annotations  # What they name needs other packages.

import argparse
import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import fl_dpftrl as dpftrl

MOMENTUM = 0.9
ROUNDS = 14


def _number(kind: type, least: float, most: float) -> Callable[[str], float]:
  """Returns a parser of numbers within limits."""

  def parsed(text: str) -> float:
    with contextlib.suppress(ValueError):
      if least <= (number := kind(text)) <= most:
        return number
    whole = 'a whole number' if kind is int else 'a number'
    raise argparse.ArgumentTypeError(f'{text} must be {whole} from {least:g} to {most:g}')

  return parsed


def _flag(default: Any, help: str, *limits: Any, **options: Any) -> Any:
  """Returns a field with the keywords of its flag; limits are those of a number."""
  options |= dict(type=_number(*limits)) if limits else {}
  return dataclasses.field(default=default, metadata=dict(help=help, **options))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Settings of a run, each of which is a flag; ε = ∞ is a run without noise."""

  epsilon: float = _flag(2.0, 'ε of the run with noise', float, 1e-3, 1e3)
  delta: float = _flag(1e-6, 'δ', float, 1e-30, 0.1)
  mechanism: str = _flag(
    'blt', 'kind of noise', choices=('blt', 'identity', 'tree_online', 'banded')
  )
  rounds: int = _flag(ROUNDS, 'number of rounds', int, 1, 10_000)
  rounds_per_person: int = _flag(1, 'most rounds of a person, evenly apart', int, 1, 10_000)
  cohort: int = _flag(40, 'people of a round', int, 1, 10**9)
  tokens: int = _flag(64, 'tokens of a block of text', int, 2, 8192)
  blocks: int = _flag(1, 'most blocks of a person', int, 1, 10_000)
  layers: int = _flag(15, 'last layers that get additions', int, 1, 10_000)
  rank: int = _flag(4, 'rank of the additions', int, 1, 1024)
  clip_norm: float = _flag(0.1, "L2 bound on a person's update", float, 1e-9, 1e9)
  clip_quantile: float | None = _flag(None, 'quantile of norms to follow', float, 0.01, 0.99)
  learning_rate: float | None = _flag(None, 'default: by the noise', float, 1e-9, 1e9)
  seed: int = _flag(0, 'seed of cohorts and fixed factors', int, 0, 10**9)
  private_loss: bool = _flag(False, "release rounds' mean losses, with noise", action='store_true')

  def __post_init__(self):
    if self.rounds_per_person > self.rounds:
      raise ValueError(
        f'--rounds_per_person={self.rounds_per_person} must be at most --rounds={self.rounds}'
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


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}


def chosen(num_people: int, given: dict[str, Any]) -> Settings:
  """Returns settings for a number of people: those that are given, and else the defaults.

  A round has as many people as there can be. Fewer people come more often, as noise grows more
  slowly with their rounds than the sum of updates, and train fewer numbers, which have less noise.
  ValueError for settings that do not fit each other or the people.
  """
  # Below so many people: rounds of a person, blocks, rank.
  rows = ((80, 14, 4, 1), (150, 7, 4, 1), (400, 2, 2, 2), (math.inf, 1, 1, 4))
  _, passes, blocks, rank = next(row for row in rows if num_people < row[0])
  passes = min(passes, given.get('rounds', ROUNDS))
  defaults = dict(rounds_per_person=passes, blocks=blocks, rank=rank)
  defaults['clip_norm'] = 0.05 * given.get('rank', rank) ** 0.5  # As updates grow with the rank.
  settings = Settings(**defaults | given)
  largest = num_people // settings.min_sep
  cohort = given.get('cohort', max(1, largest))
  if cohort > largest:
    raise ValueError(
      f'--cohort={cohort} must be at most {largest}: of {num_people} people each takes part once in'
      f' {settings.min_sep} rounds; fewer --rounds or a larger --rounds_per_person allow for more'
    )
  return dataclasses.replace(settings, cohort=cohort)
