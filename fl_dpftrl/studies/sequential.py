"""Seeds that a study adds where its best mechanism and the next are not told apart.

Whoever looks at results again and again, and stops when a difference is clear, stops too often by
chance. So there are few looks, each after half as many seeds again, and look j has the confidence
1 − 0.05 / (j (j + 1)). These errors sum to at most 0.05 for any number of looks (Bonferroni), so a
study may stop after any of them. As everywhere on a study's page, nothing is corrected for the
number of mechanisms.
"""

import dataclasses
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_dpftrl.files import durable
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import intervals, results

NAME = 'added_seeds.json'
_GROWTH = 1.5  # seeds of a look over those of the one before
_MOST = 10_000


@dataclasses.dataclass
class Added:
  """Seeds that a study added, and its looks at the results; kept in the study's folder.

  Attributes:
    path: file of the record.
    seeds: further seeds, in the order in which every setting takes them.
    counts: number of these that a setting has taken, by its name and ε.
    looks: numbers of paired seeds at which the results of an ε were looked at, by ε.
  """

  path: pathlib.Path
  seeds: list[int]
  counts: dict[str, int]
  looks: dict[float, tuple[int, ...]]

  @classmethod
  def read(cls, folder: pathlib.Path) -> 'Added':
    """Returns the record of a study's folder; an empty one where there is none.

    Raises:
      ValueError: naming the file, if it is none.
    """
    path = folder / NAME
    if not path.exists():
      return cls(path, [], {}, {})
    content = durable.read(path)
    try:
      found = cls(
        path,
        [_whole(seed) for seed in content['seeds']],
        {str(key): _whole(count) for key, count in content['counts'].items()},
        {float(e): tuple(map(_whole, looks)) for e, looks in content['looks'].items()},
      )
    except (KeyError, TypeError, ValueError, AttributeError):
      raise ValueError(f'{path} is no record of added seeds; name a new folder') from None
    if max(found.counts.values(), default=0) > len(found.seeds):
      raise ValueError(f'{path} is no record of added seeds; name a new folder')
    return found

  def write(self) -> None:
    """Writes the record."""
    content = {
      'seeds': self.seeds,
      'counts': self.counts,
      'looks': {repr(float(epsilon)): list(looks) for epsilon, looks in self.looks.items()},
    }
    durable.write(self.path, content)

  def taken(self, setting: design_lib.Setting, design: design_lib.Design) -> list[int]:
    """Returns the added seeds of a setting, without those that its design has by now."""
    seeds = self.seeds[: self.counts.get(_key(setting), 0)]
    return [seed for seed in seeds if seed not in design.seeds]

  def cells(
    self, cells: cells_lib.Cells, rates: Mapping[design_lib.Setting, float]
  ) -> Iterator[cells_lib.Cell]:
    """Yields the cells of added seeds, at the chosen rates."""
    for setting, rate in rates.items():
      for seed in self.taken(setting, cells.design):
        yield cells.cell(setting, rate, seed)

  def take(self, setting: design_lib.Setting, design: design_lib.Design) -> int:
    """Returns the next seed of a setting, once it is recorded."""
    count = self.counts.get(_key(setting), 0)
    while count == len(self.seeds) or self.seeds[count] in design.seeds:
      if count == len(self.seeds):
        self.seeds.append(1 + max([*self.seeds, *design.seeds]))
      else:
        count += 1
    self.counts[_key(setting)] = count + 1
    self.write()
    return self.seeds[count]

  def lagging(self, all_rows: Sequence[results.Row]) -> list[results.Row]:
    """Looks at the results where it is time, and returns the rows that are to have a seed more.

    They are the best and the next mechanism of an ε, unless a look has told them apart.
    """
    wanted = []
    for epsilon, level in results.levels(all_rows).items():
      if len(level) < 2:
        continue
      best, other = level[:2]
      goal = self._goal(epsilon, best, other)
      wanted += [row for row in (best, other) if len(row.tests) < goal]
    return wanted

  def _goal(self, epsilon: float, best: results.Row, other: results.Row) -> int:
    """Returns the number of seeds of the next look at two rows; 0 if they are told apart."""
    seeds, looks = len(best.tests.keys() & other.tests.keys()), self.looks.get(epsilon, ())
    if not looks or seeds >= _next(looks[-1]):
      looks = (*looks, seeds)
      self.looks[epsilon] = looks
      self.write()
    if seeds != looks[-1]:  # On the way to a look; another pair may come from behind.
      return looks[-1] if seeds < looks[-1] else _next(looks[-1])
    found = intervals.paired(best.gains, other.gains, looks)
    return 0 if found is not None and found.is_clear else _next(seeds)


def extend(
  added: Added,
  cells: cells_lib.Cells,
  found: list[results.Result],
  *,
  hours: float,
  ended: Callable[[Sequence[cells_lib.Cell]], list[results.Result]],
  say: Callable[[str], None],
) -> None:
  """Adds seeds until the best and the next mechanism of each ε are told apart, or time is spent.

  Args:
    added: record of the study, which grows.
    cells: cells of the study.
    found: results so far, to which those of added seeds are appended.
    hours: time after which no run begins.
    ended: runs cells, and returns their results.
    say: takes lines.
  """
  design, until = cells.design, time.monotonic() + 3600.0 * hours
  while True:
    wanted = added.lagging(results.rows(design, found, added.looks))
    if not wanted:
      say('at each ε the best mechanism and the next are told apart')
      return
    names = ', '.join(f'{row.label} at ε = {row.epsilon:g}' for row in wanted)
    if time.monotonic() >= until:
      say(f'the {hours:g} hours are spent; not told apart, or without their seeds: {names}')
      return
    say(f'a seed more, as the best and the next are not told apart: {names}')
    rates = results.chosen_rates(design, found)
    more = ended(
      [
        cells.cell(row.setting, rates[row.setting], added.take(row.setting, design))
        for row in wanted
      ]
    )
    found.extend(more)
    if all(result.test is None for result in more):
      say('none of the runs with added seeds gave a result, so no more are added')
      return


def check_hours(hours: float | None) -> None:
  """Raises ValueError for a time that is none."""
  if hours is not None and not 0.0 <= hours < math.inf:
    raise ValueError(f'until_told_apart={hours!r} must be a number of hours, at least 0')


def sentences(all_rows: Sequence[results.Row], design: design_lib.Design) -> list[str]:
  """Returns how many seeds were added, and what that means for intervals; none without looks."""
  parts = []
  for epsilon, level in results.levels(all_rows).items():
    if level and level[0].looks:
      counts = {row.label: len(row.tests.keys() - set(design.seeds)) for row in level}
      named = ', '.join(f'{count} of {label}' for label, count in counts.items() if count)
      times = len(level[0].looks)
      parts.append(
        f'{named or "none"} at ε = {epsilon:g} ({times} look{"s"[: times != 1]} at the results)'
      )
  if not parts:
    return []
  return [
    'Seeds were added until the best mechanism and the next were told apart, or time was spent:'
    f' {"; ".join(parts)}. Stopping at a clear difference makes plain 95 % intervals too narrow. So'
    ' at look j they have the confidence 1 − 0.05 / (j (j + 1)) here, and over all looks together'
    ' a pair of mechanisms is wrongly told apart with at most 5 % (Bonferroni over looks).'
  ]


def _next(seeds: int) -> int:
  return min(_MOST, max(seeds + 1, math.ceil(_GROWTH * seeds)))


def _key(setting: design_lib.Setting) -> str:
  return f'{setting.label} {setting.epsilon}'


def _whole(value: Any) -> int:
  if isinstance(value, bool) or not isinstance(value, int) or value < 0:
    raise ValueError
  return value
