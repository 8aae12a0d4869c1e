"""Optimal BLTs, for one participation schema or for several at once.

The decays of C and of its inverse interlace. The search variables are the gaps between them on
a logarithmic scale; see `strategies.interlaced`.
"""

import math
from collections.abc import Sequence

import numpy as np

from fl_dpftrl import error, workloads
from fl_dpftrl.families import blt, interlaced
from fl_dpftrl.optimization import blt_loss, blt_search, solver
from fl_dpftrl.participation import schemas as participation

MAX_BUFFERS = blt_search.MAX_BUFFERS

_POWERS = (16.0, 128.0, 1024.0, 8192.0)  # power means that approach a maximum
_MAXIMUM = 1e9  # power that stands for the maximum
_OVER = ('mean', 'worst', 'regret')
_SMALLEST_DECAY, _LARGEST_DECAY = 2.0**-53, 1.0 - 2.0**-53
_ABOVE = 1.0 + 2.0**-50


def optimize(
  schema: participation.MinSep,
  *,
  objective: str,
  num_buffers: int = 0,
  workload: workloads.Workload = workloads.Workload(),
  progress: solver.Progress | None = None,
) -> blt.BLT:
  """Returns the best BLT found, at a cost independent of the number of rounds.

  With a learning-rate schedule the cost is proportional to it. Arguments are those of
  `registry.optimize`.

  Raises:
    ValueError: if num_buffers or the objective is out of range.

  Source: McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), section 4, for the problem.
  """
  return optimize_range(
    [schema],
    objective=objective,
    over='mean',
    num_buffers=num_buffers,
    workload=workload,
    progress=progress,
  )


def optimize_range(
  schemas: Sequence[participation.MinSep],
  *,
  objective: str,
  over: str,
  num_buffers: int = 0,
  workload: workloads.Workload = workloads.Workload(),
  progress: solver.Progress | None = None,
) -> blt.BLT:
  """Returns the best BLT found for several schemas at once.

  It suits a run whose min-sep is only known as a range. The schemas differ in min_sep and
  max_participations, and may differ in num_rounds.

  Args:
    schemas: schemas, at least one.
    objective, num_buffers, workload, progress: see `optimize`; num_buffers is also that of the
      best BLTs of single schemas.
    over: quantity to minimise: 'mean', the mean of the losses under the schemas; 'worst', the
      largest loss; 'regret', the largest ratio of a loss to that of the best BLT for its schema
      alone.

  Raises:
    ValueError: if an argument is out of range.
  """
  if not 0 <= num_buffers <= MAX_BUFFERS:
    raise ValueError(f'num_buffers must be 1 to {MAX_BUFFERS}, or 0 to choose, got {num_buffers!r}')
  error.check_objective(objective)
  if over not in _OVER:
    raise ValueError(f'over must be one of {", ".join(_OVER)}, got {over!r}')
  if not schemas:
    raise ValueError('schemas must be at least one, got none')
  references = 1.0
  if over == 'regret' and len(schemas) > 1:
    references = np.exp(
      [
        blt_search.search(
          _plan([schema], objective, 'mean', workload), num_buffers, progress
        ).log_loss
        for schema in schemas
      ]
    )
  plan = _plan(schemas, objective, over, workload, references)
  return _strategy(blt_search.search(plan, num_buffers, progress).logits)


def _plan(
  schemas: Sequence[participation.MinSep],
  objective: str,
  over: str,
  workload: workloads.Workload,
  references: np.ndarray | float = 1.0,
) -> blt_search.Plan:
  """Returns the stages; constant rates and low powers first, as they are fast."""
  is_largest = over != 'mean' and len(schemas) > 1
  has_schedule = not workload.is_toeplitz

  def log_loss(power, of_workload=workload):
    return blt_loss.LogLoss(
      schemas,
      objective,
      of_workload,
      references=references,
      power=power if is_largest else 1.0,
      query_power=power,
    )

  stages = [log_loss(_POWERS[0], workloads.Workload(workload.momentum))]
  if is_largest or (has_schedule and objective == 'max'):
    stages += [log_loss(power) for power in _POWERS[not has_schedule :]]
  elif has_schedule:
    stages.append(log_loss(1.0))
  return blt_search.Plan(
    stages=stages,
    judge=log_loss(_MAXIMUM),
    num_rounds=max(schema.num_rounds for schema in schemas),
    is_first_apart=has_schedule,
  )


def _strategy(logits: np.ndarray) -> blt.BLT:
  gaps, _ = blt_loss.to_gaps(logits[None])
  chain = interlaced.chain(gaps[0])
  scale = chain.scales
  # Rounding may give a decay of 0 or 1, or a sum of scales above 1.
  decay = np.clip(1.0 - chain.decays, _SMALLEST_DECAY, _LARGEST_DECAY)
  return blt.BLT(
    buffer_decay=decay.tolist(), output_scale=(scale / max(1.0, math.fsum(scale) * _ABOVE)).tolist()
  )
