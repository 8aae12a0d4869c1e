"""The budget of a population, as statements over all of its runs have it."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation import promised
from fl_dpftrl.participation.rules import separations


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationBudget(promised.Promised):
  """The budget that units keep to over all runs of a population; no run claims it for itself.

  Attributes:
    epsilons: ε of each class by its name.
    delta: δ of these.
    name: what has a budget, in words.
    num_withdrawn: units that withdrew.
    num_ended: runs that ended for ever, and are charged only for the rows that they had.

  Source: docs/population-budget.md, theorem 1.
  """

  kind: ClassVar[str] = 'population'
  num_rounds: ClassVar[None] = None  # type: ignore[misc]
  epsilons: Mapping[str, float]
  delta: float
  name: str
  num_ended: int = 0
  num_withdrawn: int = 0

  @property
  def unit(self) -> str:  # type: ignore[override]
    """The unit that has a budget, in words."""
    return self.name

  @property
  def num_rows(self) -> int:
    """More rows of noise than all runs can have."""
    return 2**62

  @property
  def schema(self) -> schemas.Schema:
    """The schema that units keep to: none is narrower than any, whatever they cost."""
    return separations.MinSep(schemas.LAST_ROW)

  @property
  def assumption(self) -> str:
    """The allowed patterns in words."""
    return (
      f'every {self.name} takes part in a round of any run only while its losses in all runs of the'
      ' population, over all rows of noise, stay within its budget; it is charged before the round'
    )
