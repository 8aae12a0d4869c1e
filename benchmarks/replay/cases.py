"""Logs that the benchmark replays."""

import dataclasses

from benchmarks import selection

PREFIX = 'replay'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Log and the strategy it is replayed with.

  Attributes:
    size: number of participations in a word.
    ids: 'integer' or 'text'.
    num_devices: number of devices to draw from.
    num_rounds: n.
    cohort: number of devices per round.
    strategy: name of the strategy in the catalogue.
    large: True if it takes minutes, in which case the peer is not run.
    timeout: time limit of a process, in seconds.
  """

  size: str
  ids: str = 'integer'
  num_devices: int
  num_rounds: int
  cohort: int
  strategy: str = 'blt-b400'
  large: bool = False
  timeout: float = 600.0

  @property
  def name(self) -> str:
    """Name of the case, such as replay-13M-text."""
    return f'{PREFIX}-{self.size}-{self.ids}'

  @property
  def num_participations(self) -> int:
    return self.num_rounds * self.cohort

  @property
  def file_name(self) -> str:
    """File name of the log, different for every log."""
    return (
      f'{self.ids}-devices{self.num_devices}-rounds{self.num_rounds}-cohort{self.cohort}.parquet'
    )


CASES = (
  *(
    Case(size='13M', ids=ids, num_devices=3_000_000, num_rounds=2000, cohort=6500)
    for ids in ('integer', 'text')
  ),
  Case(
    size='1B', num_devices=320_000_000, num_rounds=2000, cohort=505_000, large=True, timeout=3600.0
  ),
)


# Counted by the statement for warehouses, too.
COUNTED = Case(size='47M', num_devices=10_000_000, num_rounds=2000, cohort=23_750)


def select(words: list[str], *, large: bool) -> list[Case]:
  """Returns the cases whose name contains a word; all without words.

  Args:
    words: parts of names.
    large: True for the large cases only, False for the others.

  Raises:
    ValueError: if no such case contains a word.
  """
  there = [case for case in CASES if case.large == large]
  return selection.select(there, words)
