"""Status of a run while it goes on: facts without ids or values of single clients."""

import dataclasses
import math
import shutil
from typing import Any

from fl_dpftrl.claims import noise_to_signal
from fl_dpftrl.run import guards


@dataclasses.dataclass(frozen=True, kw_only=True)
class Status:
  """Figures of a run while it goes on, public but for `devices_with_budget`.

  Attributes:
    num_rounds: rounds that were begun.
    max_rounds: rounds that there can be.
    rounds_left: those that were not begun; None for a run without an end.
    devices_with_budget: share of the devices seen, or of the units, that may have loss budget for
      another round, rounded down to a multiple of 0.05; None without a loss budget. Confidential:
      it depends on who took part.
    epsilon: ε of the rounds that were begun by the declared participation, or with every device in
      all of them where none is declared; of all declared rounds where participation is drawn, and
      of the whole of a loss budget. ∞ where none is proven; None without δ, or without a guarantee.
    epsilon_left: budget that remains beyond it; None without a budget.
    delta: δ of `epsilon`.
    void_reason: why nothing is guaranteed; None if something is.
    disk_left_bytes: free space of the disk that has the folder.
    noise_to_signal: noise in the sum of all declared rounds over the most that its updates can add
      up to; above 10 there is next to nothing to learn from. None where it is not known.
  """

  num_rounds: int
  max_rounds: int
  rounds_left: int | None
  devices_with_budget: float | None
  epsilon: float | None
  epsilon_left: float | None
  delta: float | None
  void_reason: str | None
  disk_left_bytes: int
  noise_to_signal: float | None

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
    if num_rounds or claim.is_drawn or claim.answers.num_rounds is None:
      answers = claim.answers
      participation = answers if claim.is_drawn else answers.within(num_rounds)
      epsilon = claim.guarantee(participation, delta).epsilon()
  share = guard.gate.share_with_budget() if guard.gate else None
  ratio = noise_to_signal.expected(claim)
  is_planned = claim.participation is not None or claim.strategy.max_rounds is not None
  has_end = is_planned and claim.answers.num_rounds is not None
  return Status(
    num_rounds=guard.num_rounds,
    max_rounds=run.max_rounds,
    rounds_left=max(0, run.max_rounds - guard.num_rounds) if has_end else None,
    devices_with_budget=None if share is None else math.floor(20 * share) / 20,
    epsilon=epsilon,
    epsilon_left=None if epsilon is None or max_epsilon is None else max_epsilon - epsilon,
    delta=delta,
    void_reason=claim.void_reason,
    disk_left_bytes=shutil.disk_usage(run.folder).free,
    noise_to_signal=None if ratio is None else ratio.total,
  )
