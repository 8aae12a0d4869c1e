"""Independent noise: C is the identity."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, workload_error, workloads
from fl_dpftrl.mechanisms.sensitivities import endless, kinds


@dataclasses.dataclass(frozen=True, repr=False)
class Identity(base.Strategy):
  """Independent Gaussian noise in every round, as DP-FedAvg and DP-SGD add."""

  family: ClassVar[str] = 'identity'

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return np.eye(num_rounds)

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return self.strategy_matrix(num_rounds)

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    del num_rounds
    return linear_noise.LinearNoise(0, lambda t: linear_noise.Step(norm=1.0), period=1)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    base.check_num_rounds(self, schema.num_rounds)
    return kinds.Sensitivity.from_square(schema.participations)

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    base.check_num_rounds(self, num_rounds)
    return lambda rows, columns: (rows == columns).astype(np.float64)

  def endless_gram(self) -> endless.Gram:
    return endless.Lags(np.array([1.0, 0.0]))

  def error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> workload_error.Error:
    if not workload.is_prefix_sums:
      return super().error(num_rounds, workload)
    base.check_num_rounds(self, num_rounds)
    return workload_error.Error(math.sqrt((num_rounds + 1) / 2), math.sqrt(num_rounds))

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    if not workload.is_prefix_sums:
      return super().per_query_error(num_rounds, workload)
    base.check_num_rounds(self, num_rounds)
    return np.sqrt(np.arange(1.0, num_rounds + 1.0))
