"""Earlier runs of a population, whose losses count against the loss budget of a new run."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import keys, sealing
from fl_dpftrl.participation.counts import meter
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.prove.replaying import counting, device_tallies, opened_runs, replays

_ANY_DELTA = 1e-6  # Losses do not depend on it.
_ROOM = 1.0 + 1e-9


def counted(
  claim: run_claim.Claim, runs: Sequence[opened_runs.RecordedRun]
) -> tuple[run_claim.Claim, np.ndarray, np.ndarray]:
  """Returns the claim that states earlier runs, their devices, and what each of them has lost.

  The loss of run r is Q_r (σ / σ_r)², with Q_r over all rows of noise of a run without an end. On
  every path the losses of earlier runs and of the new one then stay within B² together, if those
  of the earlier ones do: so their guarantee must not be above that of the new run.

  Raises:
    ValueError: for a claim without a loss budget, and runs whose devices had no bound below it.
    LogError: for a log that cannot be believed.

  Source: docs/endless.md.
  """
  budget = claim.participation
  if not isinstance(budget, loss_budgets.LossBudget):
    raise ValueError('earlier runs count against a loss budget only; replay composes others')
  digests = tuple(run.digest or '' for run in runs)
  if budget.earlier not in ((), digests):
    raise ValueError('earlier: the claim counts other runs, or has them in another order')
  if not claim.noise_multiplier:
    raise ValueError('earlier: a run without noise guarantees nothing, whatever was spent before')
  if '' in digests:
    raise ValueError(f'earlier: run {digests.index("") + 1} has a log that states no run and claim')
  statement = replays.replay(runs, delta=_ANY_DELTA)
  declared = statement.declared
  if statement.void_reason or declared is None or not declared.holds:
    raise ValueError(
      'earlier: its runs must each state a schema or a loss budget that devices kept to:'
      f' {statement.void_reason or (declared and declared.reason) or "none is declared"}'
    )
  spent, room = declared.guarantee, budget.square(claim.strategy) / claim.noise_multiplier**2
  if (spent.sensitivity / spent.noise_multiplier) ** 2 > room * _ROOM:
    raise ValueError(
      f'earlier: its runs may spend B/σ = {spent.sensitivity / spent.noise_multiplier:.6g} of a'
      f' device, above {room**0.5:.6g} of the new run; give that a larger budget or more noise'
    )
  ids, losses = _losses(runs, claim)
  stated = dataclasses.replace(budget, earlier=digests)
  return dataclasses.replace(claim, participation=stated), ids, losses * meter.ROUNDING


def check_given(claim: run_claim.Claim) -> None:
  """Raises ValueError for a claim that counts earlier runs where none is given."""
  participation: Any = claim.participation
  inner = getattr(participation, 'participation', participation)  # Of a `PerUnit`.
  if getattr(inner, 'earlier', ()):
    raise ValueError('earlier: the claim counts runs that must be given too, as earlier=[…]')


def seal(runs: Sequence[opened_runs.RecordedRun]) -> None:
  """Lets no round follow in earlier runs, as a later one counts what they lost so far; durably."""
  for run in runs:
    for shard in run.log.shards:
      sealing.seal(shard.path, run.log.metadata[keys.CHAIN_KEY])


def _losses(
  runs: Sequence[opened_runs.RecordedRun], claim: run_claim.Claim
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the devices of runs, and what each has lost in units of a claim's noise multiplier."""
  num_rounds = [run.log.num_rounds for run in runs]
  exposure = device_tallies.Exposure([run.claim for run in runs], num_rounds)
  unit = exposure.in_units(claim)
  every: list[str | int] = []
  squares = [np.zeros(0)]
  rows = counting.Rows(runs)
  for part in rows.parts():
    for numbers, rounds, name in rows.sorted(part):
      devices, sizes = np.unique(numbers, return_counts=True)
      squares.append(exposure.squares(rounds, sizes)[0])
      every += map(name, devices.tolist())
  return np.array(
    every, object if every and isinstance(every[0], str) else np.int64
  ), np.concatenate(squares) * unit
