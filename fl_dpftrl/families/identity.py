"""Independent noise: C is the identity."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.families import base


@dataclasses.dataclass(frozen=True)
class Identity:
  """Independent Gaussian noise in every round, as DP-FedAvg and DP-SGD add."""

  family: ClassVar[str] = 'identity'

  @property
  def max_rounds(self) -> int | None:
    return None

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return np.eye(num_rounds)

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return self.strategy_matrix(num_rounds)

  def num_noise_rows(self, num_rounds: int) -> int:
    return num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    del num_rounds
    return 0

  def parameters(self) -> dict[str, Any]:
    return {}
