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


def _flag(default: Any, help: str, **options: Any) -> Any:
  """Returns a field with the keywords of its flag."""
  return dataclasses.field(default=default, metadata=dict(help=help, **options))


def _whole(most: int, least: int = 1) -> Callable[[str], int]:
  def parsed(text: str) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
      raise argparse.ArgumentTypeError(f'{text} must be a whole number from {least} to {most:,}')
    return int(text)

  return parsed


def _positive(below: float = math.inf) -> Callable[[str], float]:
  def parsed(text: str) -> float:
    with contextlib.suppress(ValueError):
      if 0.0 < float(text) < below:
        return float(text)
    limit = '' if below == math.inf else f' and below {below:g}'
    raise argparse.ArgumentTypeError(f'{text} must be a number above 0{limit}')

  return parsed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """Settings of a run, each of which is a flag; ε = ∞ is a run without noise."""

  epsilon: float = _flag(2.0, 'ε of the run with noise', type=_positive())
  delta: float = _flag(1e-6, 'δ', type=_positive(1.0))
  mechanism: str = _flag(
    'blt', 'kind of noise', choices=('blt', 'identity', 'tree_online', 'banded')
  )
  rounds: int = _flag(ROUNDS, 'number of rounds', type=_whole(10_000))
  rounds_per_person: int = _flag(1, 'most rounds of a person, evenly apart', type=_whole(10_000))
  cohort: int = _flag(40, 'people of a round', type=_whole(10**9))
  tokens: int = _flag(64, 'tokens of a block of text', type=_whole(8192, least=2))
  blocks: int = _flag(
    1, "most blocks of a person, whose update is the blocks' mean", type=_whole(10_000)
  )
  layers: int = _flag(15, 'last layers that get additions', type=_whole(10_000))
  rank: int = _flag(4, 'rank of the additions', type=_whole(1024))
  clip_norm: float = _flag(0.1, "L2 bound on a person's update", type=_positive())
  clip_quantile: float | None = _flag(
    None, 'quantile of norms that it follows', type=_positive(1.0)
  )
  learning_rate: float | None = _flag(
    None, "the server's (default: by the noise)", type=_positive()
  )
  seed: int = _flag(0, 'seed of cohorts and fixed factors', type=_whole(2**32, least=0))
  private_loss: bool = _flag(
    False, "release each round's mean loss, with noise", action='store_true'
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


def chosen(num_people: int, given: dict[str, Any], most: int | None = None) -> Settings:
  """Returns settings for a number of people: those that are given, and else the defaults.

  A round has as many people as there can be. Fewer people come more often, as noise grows more
  slowly with their rounds than the sum of updates, and train fewer numbers, which have less noise.

  Args:
    num_people: people who train.
    given: settings by name.
    most: people of a round by default; None for as many as there can be.

  Raises:
    ValueError: for settings that do not fit each other or the people.
  """
  # Below so many people: rounds of a person, blocks, rank.
  rows = ((80, 14, 4, 1), (150, 7, 4, 1), (400, 2, 2, 2), (math.inf, 1, 1, 4))
  _, passes, blocks, rank = next(row for row in rows if num_people < row[0])
  defaults = dict(rounds_per_person=passes, blocks=blocks, rank=rank)
  defaults['clip_norm'] = 0.05 * given.get('rank', rank) ** 0.5  # As updates grow with the rank.
  settings = Settings(**defaults | given)
  largest = num_people // settings.min_sep
  if not largest:
    raise ValueError(
      f'{num_people} people are too few for {settings.min_sep} rounds with other people each: give'
      f' --rounds_per_person={math.ceil(settings.rounds / num_people)} or more, or fewer --rounds'
    )
  if given.get('cohort', 0) > largest:
    raise ValueError(
      f'--cohort={settings.cohort} must be at most {largest}: of {num_people} people each takes'
      f' part once in {settings.min_sep} rounds'
    )
  return dataclasses.replace(settings, cohort=given.get('cohort', min(largest, most or largest)))
