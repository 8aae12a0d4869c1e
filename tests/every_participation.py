"""Example participations of every kind, each with an oracle of what it allows, for all tests."""

import dataclasses
import importlib.util
import itertools
import pathlib
from collections.abc import Callable, Iterator

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import base, sensitivities
from fl_dpftrl.participation import gates, promised
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import sampling

_PATH = pathlib.Path(__file__).parents[1] / 'examples' / 'own_participation.py'
_spec = importlib.util.spec_from_file_location('own_participation', _PATH)
own_participation = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(own_participation)

NUM_ROUNDS, _LONG = 6, 200
Rounds = tuple[int, ...]
Allowed = Callable[[Rounds, np.ndarray], bool]


class OnceGate(gates.Gate):
  def __init__(self):
    self.clear()

  def clear(self):
    self.seen = seen.Seen()

  def reasons(self, device_ids, rows=1):
    return np.where(self.seen.of(device_ids)[1] > 0, 'once', '')

  def sentence(self, reason, last_round, participations):
    return f'took part in round {last_round}, and once is all'

  def record(self, device_ids, rows=None):
    self.seen.add(device_ids)


@dpftrl.register
@dataclasses.dataclass(frozen=True)
class Once(promised.Promised):
  """At most one round of a device, with every answer of its own."""

  kind = 'once'
  num_rounds: int
  assumption = 'every device takes part once'

  @property
  def schema(self):
    return dpftrl.MinSep(self.num_rounds, max_participations=1)

  def within(self, num_rounds):
    return dataclasses.replace(self, num_rounds=num_rounds)

  def worst_case(self, strategy):
    return sensitivities.sensitivity(strategy, self.schema)

  def gate(self, strategy):
    return OnceGate()

  def wrong(self, strategy, rounds, starts):
    return np.arange(rounds.size) > starts

  def contradictions(self, counts, recorded, violators):
    return [f'{violators} devices came back'] if violators else []


@dataclasses.dataclass(frozen=True)
class Example:
  """A participation, and its oracle.

  Attributes:
    allowed: whether a device may take part in ascending rounds, by what the participation means.
      Its second argument is X of the strategy, over all rows for ever.
  """

  participation: Participation
  allowed: Allowed

  @property
  def most_rows(self) -> int:
    """Most rows of a unit in a round."""
    return getattr(self.participation, 'max_rows', 1)

  def patterns(self, strategy: base.Strategy, num_rounds: int = NUM_ROUNDS) -> Iterator[Rounds]:
    """Yields what it allows of all rounds."""
    losses = losses_of(strategy)
    yield from (p for p in every_pattern(num_rounds, self.most_rows) if self.allowed(p, losses))

  def worst(self, strategy: base.Strategy, num_rounds: int = NUM_ROUNDS) -> float:
    """Returns the largest norm of C u, over all patterns, for updates of norm 1 of either sign."""
    last = _LONG if self.participation.num_rounds is None else num_rounds
    matrix, most = strategy.strategy_matrix(last), 0.0
    for pattern in self.patterns(strategy, num_rounds):
      # Rows of one round have one sign where that costs most.
      distinct, rows = np.unique(pattern, return_counts=True)
      for signs in itertools.product((1.0, -1.0), repeat=len(distinct)):
        most = max(most, float(np.linalg.norm(matrix[:, distinct] @ (rows * signs))))
    return most


def losses_of(strategy: base.Strategy) -> np.ndarray:
  """Returns X of the first rounds over rows that come long after them."""
  matrix = strategy.strategy_matrix(_LONG)[:, :NUM_ROUNDS]
  return np.abs(matrix.T @ matrix)


def every_pattern(num_rounds: int, most_rows: int = 1) -> Iterator[Rounds]:
  """Yields every set of rounds but the empty one, with up to so many rows in each round."""
  for rows in itertools.product(range(most_rows + 1), repeat=num_rounds):
    if any(rows):
      yield tuple(t for t, number in enumerate(rows) for _ in range(number))


def apart(min_sep: int, most: int = NUM_ROUNDS) -> Allowed:
  return lambda rounds, _: (
    len(rounds) <= most and all(t - s >= min_sep for s, t in itertools.pairwise(rounds))
  )


def exactly_apart(separation: int) -> Allowed:
  return lambda rounds, _: all(t - s == separation for s, t in itertools.pairwise(rounds))


def in_turn(turns: int, passes_of: int = 1) -> Allowed:
  """In rounds of one part or bin, at most one of each pass."""

  def allowed(rounds: Rounds, _: np.ndarray) -> bool:
    passes = [t // turns // passes_of for t in rounds]
    return len({t % turns for t in rounds}) == 1 and len(set(passes)) == len(passes)

  return allowed


def same_place(turns: int, passes_of: int) -> Allowed:
  return lambda rounds, _: len({t % (turns * passes_of) for t in rounds}) == 1


def within_loss(square: Callable[[np.ndarray], float]) -> Allowed:
  def allowed(rounds: Rounds, losses: np.ndarray) -> bool:
    return losses[np.ix_(rounds, rounds)].sum() <= square(losses) * (1.0 + 1e-7)

  return allowed


def few_in_windows(window: int, most: int, in_all: int) -> Allowed:
  def allowed(rounds: Rounds, _: np.ndarray) -> bool:
    windows = range(NUM_ROUNDS)
    counts = [sum(start <= t < start + window for t in rounds) for start in windows]
    return len(rounds) <= in_all and max(counts) <= most

  return allowed


def of_units(allowed: Allowed, most_rows: int, *, by_row: bool = False) -> Allowed:
  def allowed_unit(rounds: Rounds, losses: np.ndarray) -> bool:
    charged = rounds if by_row else tuple(sorted(set(rounds)))
    return max(map(rounds.count, rounds)) <= most_rows and allowed(charged, losses)

  return allowed_unit


_SIZES = {'num_rounds': NUM_ROUNDS, 'num_examples': 8, 'batch_size': 2}
_BUDGET = dpftrl.LossBudget(max_participations=2, min_sep=2)
_NAMED = within_loss(lambda losses: losses[np.ix_((0, 2), (0, 2))].sum())

EXAMPLES = {
  'min_sep': Example(dpftrl.MinSep(NUM_ROUNDS, 2, 2), apart(2, 2)),
  'min_sep as often as fits': Example(dpftrl.MinSep(NUM_ROUNDS, 3), apart(3)),
  'min_sep without an end': Example(dpftrl.MinSep(None, 2, 3), apart(2, 3)),
  'fixed_separation': Example(dpftrl.FixedSeparation(NUM_ROUNDS, 2), exactly_apart(2)),
  'loss_budget': Example(_BUDGET, _NAMED),
  'loss_budget of a number': Example(
    dpftrl.LossBudget(squared=5.0), within_loss(lambda losses: 5.0)
  ),
  'per_unit': Example(dpftrl.PerUnit(dpftrl.MinSep(NUM_ROUNDS, 2, 2), 2), of_units(apart(2, 2), 2)),
  'per_unit of a budget': Example(dpftrl.PerUnit(_BUDGET, 2), of_units(_NAMED, 2, by_row=True)),
  'at_most_in_window': Example(
    own_participation.AtMostInWindow(num_rounds=NUM_ROUNDS, window=4, most=2, max_participations=3),
    few_in_windows(4, 2, 3),
  ),
  'once': Example(Once(NUM_ROUNDS), apart(1, 1)),
  'poisson': Example(sampling.CyclicPoisson(num_parts=2, **_SIZES), in_turn(2)),
  'fixed_size': Example(sampling.CyclicFixedSize(num_parts=2, **_SIZES), in_turn(2)),
  'shuffled': Example(sampling.Shuffled(num_parts=2, **_SIZES), in_turn(2, 2)),
  'shuffled_once': Example(sampling.ShuffledOnce(num_parts=2, **_SIZES), same_place(2, 2)),
  'bins': Example(dpftrl.SecretBins(NUM_ROUNDS, 3), in_turn(3)),
}
