"""Loss of BLTs as a smooth function of unconstrained variables."""

from collections.abc import Callable, Sequence

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.families import blt_sums, interlaced
from fl_dpftrl.participation import schemas as participation

_LOGIT_BOUND = 33.0  # keeps gaps above e^−33, so that 1 − θ is not rounded to 1


class LogLoss:
  """Logarithm of the loss for several schemas at once, with its gradient.

  The loss is the power mean of the losses, each divided by its reference. High powers
  approximate the largest of them.
  """

  def __init__(
    self,
    schemas: Sequence[participation.MinSep],
    objective: str,
    workload: workloads.Workload,
    *,
    references: np.ndarray | float = 1.0,
    power: float = 1.0,
    query_power: float = 64.0,
  ):
    """Creates the loss for schemas of any number of rounds.

    Args:
      schemas: schemas, at least one.
      objective: 'rms' or 'max'.
      workload: workload of the errors.
      references: reference losses, shape [schemas], or one for all.
      power: power of the mean over the schemas.
      query_power: power of the mean over the queries that approximates the largest error with a
        learning-rate schedule.
    """
    self._sensitivities = [blt_sums.SquaredSensitivity(schema) for schema in schemas]
    self._rounds = [schema.num_rounds for schema in schemas]
    self._errors = {
      num_rounds: _squared_error(num_rounds, objective, workload, query_power)
      for num_rounds in dict.fromkeys(self._rounds)
    }
    self._log_references = np.log(np.broadcast_to(references, len(schemas)))
    self._power = power

  def __call__(self, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns values, shape [points], and gradients, shape [points, 2d]."""
    gaps, pull_back = to_gaps(logits)
    chain = interlaced.chain(gaps)
    errors = {
      num_rounds: _of_log(error(chain.below_one[..., 0::2], chain.sum_scales))
      for num_rounds, error in self._errors.items()
    }
    sensitivities = [
      _of_log(sensitivity(chain.decays, chain.scales)) for sensitivity in self._sensitivities
    ]
    logs = np.stack(
      [
        sensitivity[0] + errors[num_rounds][0] - reference
        for sensitivity, num_rounds, reference in zip(
          sensitivities, self._rounds, self._log_references
        )
      ]
    )
    largest = logs.max(axis=0)
    shares = np.exp(self._power * (logs - largest))
    total = shares.sum(axis=0)
    shares /= total
    value = largest + np.log(total / len(self._rounds)) / self._power
    of_chain = [
      sum(share[:, None] * gradients[which] for share, gradients in zip(shares, parts))
      for parts in (sensitivities, [errors[num_rounds] for num_rounds in self._rounds])
      for which in (1, 2)
    ]
    return value, pull_back(interlaced.gradient(chain, *of_chain))


def _squared_error(
  num_rounds: int, objective: str, workload: workloads.Workload, query_power: float
) -> Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]:
  if workload.is_toeplitz:
    return blt_sums.SquaredError(num_rounds, objective, workload.momentum)
  workloads.check_round_by_round(num_rounds)
  return blt_sums.ScheduleSquaredError(
    workload.learning_rates(num_rounds), objective, workload.momentum, power=query_power
  )


def _of_log(of_square: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[np.ndarray, ...]:
  """Maps a square and its gradients to ln of its root and its gradients."""
  square, *gradients = of_square
  return (0.5 * np.log(square), *(0.5 * gradient / square[:, None] for gradient in gradients))


def to_gaps(logits: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
  """Returns the gaps from 1 down the chain for unconstrained variables.

  All gaps but the last share out 1 with θ_d, which keeps every θ between 0 and 1. The last is
  at most what is left of 1 after the other θ − θ̂, which keeps Σ ω = Σ (θ − θ̂) below 1.

  Args:
    logits: shape [points, 2d].

  Returns:
    The gaps, of the same shape, and the pull-back of gradients from gaps to logits.
  """
  clipped = np.clip(logits, -_LOGIT_BOUND, _LOGIT_BOUND)
  inside = clipped == logits
  shares = np.append(clipped[:, :-1], np.zeros((len(logits), 1)), axis=1)
  shares = np.exp(shares - shares.max(axis=1, keepdims=True))
  shares /= shares.sum(axis=1, keepdims=True)
  # Remainder of 1 after the other θ − θ̂: the other gaps, and θ_d.
  room = shares[:, 0::2].sum(axis=1) + shares[:, -1]
  shares = np.maximum(shares[:, :-1], np.exp(-_LOGIT_BOUND))
  part = 1.0 / (1.0 + np.exp(-clipped[:, -1]))
  gaps = np.append(shares, (room * part)[:, None], axis=1)

  def pull_back(of_gaps: np.ndarray) -> np.ndarray:
    of_shares = of_gaps[:, :-1].copy()
    of_shares[:, 1::2] -= (of_gaps[:, -1] * part)[:, None]
    along = np.sum(shares * of_shares, axis=1, keepdims=True)
    last = of_gaps[:, -1] * room * part * (1.0 - part)
    return inside * np.append(shares * (of_shares - along), last[:, None], axis=1)

  return gaps, pull_back


def to_logits(gaps: np.ndarray) -> np.ndarray:
  """Inverts `to_gaps` as far as possible; shape [2d]."""
  shares = np.log(gaps[:-1]) - np.log1p(-gaps[:-1].sum())
  part = gaps[-1] / (1.0 - gaps[1:-1:2].sum())
  return np.append(shares, np.log(part) - np.log1p(-part))
