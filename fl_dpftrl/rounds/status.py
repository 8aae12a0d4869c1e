"""Status of a run while it goes on: facts without ids or values of clients."""

import dataclasses
import math
import shutil
from typing import Any

from fl_dpftrl.rounds import guards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
  """Public figures of a run while it goes on: they depend on no client.

  Attributes:
    num_rounds: rounds that were begun.
    max_rounds: rounds that there can be.
    epsilon: ε of the rounds that were begun by the declared participation, or with every device in
      all of them where none is declared; of all declared rounds where participation is drawn, and
      of the whole of a loss budget. ∞ where none is proven; None without δ, or without a guarantee.
    epsilon_left: budget that remains beyond it; None without a budget.
    delta: δ of `epsilon`.
    void_reason: why nothing is guaranteed; None if something is.
    disk_left_bytes: free space of the disk that has the folder.
  """

  num_rounds: int
  max_rounds: int
  epsilon: float | None
  epsilon_left: float | None
  delta: float | None
  void_reason: str | None
  disk_left_bytes: int

  def to_json(self) -> dict[str, Any]:
    """Returns the figures that are known; None for one that is infinite."""
    figures = {n: v for n, v in dataclasses.asdict(self).items() if v is not None}
    return {n: None if v == math.inf else v for n, v in figures.items()}


def current(guard: guards.Guard, run: Any) -> Status:
  """Returns the status of a run, a `PrivateAggregator` or `TrainingRun`, that a guard keeps."""
  delta, max_epsilon = run.delta, run.max_epsilon
  claim, epsilon = guard.claim, None
  if delta is not None and claim.void_reason is None:
    num_rounds, epsilon = guard.num_rounds, 0.0
    if num_rounds or claim.answers.num_rounds is None:
      answers = claim.answers
      participation = answers if claim.is_drawn else answers.within(num_rounds)
      epsilon = claim.guarantee(participation, delta).epsilon()
  return Status(
    num_rounds=guard.num_rounds,
    max_rounds=run.max_rounds,
    epsilon=epsilon,
    epsilon_left=None if epsilon is None or max_epsilon is None else max_epsilon - epsilon,
    delta=delta,
    void_reason=claim.void_reason,
    disk_left_bytes=shutil.disk_usage(run.folder).free,
  )
