"""Which logs are replayed."""

import dataclasses

from benchmarks import selection

PREFIX = 'replay'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A log, and what it is replayed with.

  Attributes:
    size: participations in a word.
    ids: 'integer' or 'text'.
    num_devices: that there are to draw from.
    num_rounds: n.
    cohort: devices in every round.
    strategy: by its name in the catalogue.
    large: whether it takes minutes, and the peer is not asked.
    timeout: seconds after which a process is ended.
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
    """Such as replay-13M-text."""
    return f'{PREFIX}-{self.size}-{self.ids}'

  @property
  def num_participations(self) -> int:
    return self.num_rounds * self.cohort

  @property
  def file_name(self) -> str:
    """Of its log: another for any other log."""
    return (
        f'{self.ids}-devices{self.num_devices}-rounds{self.num_rounds}'
        f'-cohort{self.cohort}.parquet'
    )


CASES = (
    *(
        Case(
            size='13M', ids=ids, num_devices=3_000_000, num_rounds=2000,
            cohort=6500,
        )
        for ids in ('integer', 'text')
    ),
    Case(
        size='1B', num_devices=320_000_000, num_rounds=2000, cohort=505_000,
        large=True, timeout=3600.0,
    ),
)


def select(words: list[str], *, large: bool) -> list[Case]:
  """Cases whose name holds one of the words; all where there are none.

  Args:
    words: parts of names.
    large: the large ones alone, or the others.

  Raises:
    ValueError: for a word that no such case holds.
  """
  there = [case for case in CASES if case.large == large]
  return selection.select(there, words)
