"""Noised means of updates, round by round, for any training loop."""

import contextlib
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates, run_claim
from fl_dpftrl.claims import canaries as canary_claims
from fl_dpftrl.claims.lattice_units import checked
from fl_dpftrl.logs import id_columns, unit_tables
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import (
  admission,
  audited,
  budget,
  continued_claims,
  guards,
  live_run,
  noise_rows,
  noised_sums,
  private_round,
  release,
  released,
  shared_budgets,
  structures,
)
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages

NOISE_NAME = 'noise'


class PrivateAggregator(live_run.LiveRun):
  """Releases (sum of bounded updates + row t of N·Z) / report_goal in round t, to any loop.

      with aggregator.round(device_ids) as round_:
        for update in updates:
          round_.add(update)
      mean = round_.mean

  Updates are nested structures of arrays of NumPy, PyTorch or JAX. Each is clipped to clip_norm in
  L2, over all its arrays. One that holds a NaN or an infinity is rejected, one whose L∞ norm
  exceeds zeroing_norm is zeroed: both enter the sum as zeros. Entries of Z have standard deviation
  noise_multiplier · clip_norm. Updates and rows are whole multiples of a public unit, and so are
  their sums; the mean is converted to the update's type last. So the guarantee is that of the bits
  that are released (docs/decisions/arithmetic.md). From one seed and the same updates, the means
  are those of `CorrelatedNoiseFactory`, bit for bit where no update is clipped.

  The folder holds the participation log, the strategy file, and the noise with its secret seed. A
  round's cohort is durably in the log before the block begins, and its row of noise is marked as
  used before the mean is there. A round that fails, or whose process is killed, has used up its
  row: nothing of it is released, and the run goes on with the next round.
  """

  @live_run.opening
  def __init__(
    self,
    strategy: files.Given,
    *,
    template: Any,
    noise_multiplier: float | None = None,
    clip_norm: float | adaptive_clipping.AdaptiveClipping,
    report_goal: int,
    folder: str | os.PathLike[str],
    participation: Participation | None = None,
    max_epsilon: float | None = None,
    delta: float | None = None,
    zeroing_norm: float | None = None,
    metrics: Mapping[str, float] | None = None,
    metrics_stddev: float | None = None,
    population: shared_budgets.Population | None = None,
    noise_seed: int | None = None,
    moved: bool = False,
    observers: Sequence[observer.Observer] = (),
    units: unit_tables.Given | None = None,
    canaries: canary_claims.Canaries | None = None,
  ):
    """Opens a run's folder; one with a run is continued at its next round.

    Args:
      strategy: C and N.
      template: nested structure of float32 or float64 arrays, as updates have it, such as the
        model's parameters; their values are not used.
      noise_multiplier: std(Z) / clip_norm in round 0; 0 for a run without noise, which guarantees
        nothing. None for the least with which all its rounds are within max_epsilon.
      clip_norm: L2 bound on an update, from 1e-30 to 1e30; or an `AdaptiveClipping`, which follows
        a quantile of the updates' norms by released counts.
      report_goal: updates that a round needs, the fixed divisor of the sum.
      participation: schema that devices keep to; rounds with others are refused. Or the scheme by
        which batches are drawn in secret, for training in one place: ε is then that of the scheme,
        where the log does not contradict it, and rounds may have few updates. None for no limit.
      zeroing_norm: L∞ norm above which an update is zeroed; None for no limit.
      metrics: name → public upper bound of a metric of clients, whose values are from 0 to it.
        Their means are released with noise, under the same guarantee as the model.
      metrics_stddev: see `claims.extra_coordinates.PrivateMetrics`.
      folder, max_epsilon, delta, population, units: see `LiveRun`.
      noise_seed, moved: see `NoiseRows`.
      observers: see rounds; `fl_dpftrl.run.observers` has some. Their errors are warnings.
      canaries: made-up devices by which `audit_run` measures what the releases show; None for none.

    Raises:
      ValueError: for an argument that will not do, and a folder of another run or in use.
      LostStateError: if files without which rows could repeat are missing, damaged or copies.
    """
    self._noised: Any = None
    strategy = files.resolved(strategy)
    if participation is not None:
      registry.check(participation)
    self.participation, folder = participation, paths.local(folder)
    watching = observer.Observers(observers, folder, warns=True)
    self.template = structures.Template.of(template)
    private_metrics = extra_coordinates.private_metrics(metrics, metrics_stddev)
    size = self.template.size + release.num_extra(clip_norm, private_metrics)
    if noise_multiplier is None:
      options = (strategy, participation, max_epsilon, delta)
      noise_multiplier = budget.least_noise(*options, num_coordinates=size)
    self.noise_multiplier = checked('noise_multiplier', noise_multiplier)
    if not isinstance(clip_norm, adaptive_clipping.AdaptiveClipping):
      clip_norm = checked('clip_norm', clip_norm)
    self.report_goal = checked('report_goal', report_goal)
    self.zeroing_norm = zeroing_norm and checked('zeroing_norm', zeroing_norm)
    claim = run_claim.Claim(
      strategy=strategy,
      noise_multiplier=self.noise_multiplier,
      clip_norm=clip_norm,
      report_goal=self.report_goal,
      private_metrics=private_metrics,
      participation=participation,
      arithmetic=arithmetics.Arithmetic.of(self.noise_multiplier, size, True),
      void_reason=run_claim.void_reason(self.noise_multiplier, noise_seed),
      canaries=canaries,
    )
    claim = continued_claims.continued(claim, folder)
    self.strategy, self.noise_multiplier = claim.strategy, claim.noise_multiplier
    coordinates = release.Release(claim, self.template.size)
    super().__init__(
      folder,
      claim,
      watching,
      delta=delta,
      max_epsilon=max_epsilon,
      units=units,
      population=population,
      setting=settings.Setting(zeroing_norm=self.zeroing_norm),
      num_coordinates=self.template.size,
    )
    with contextlib.ExitStack() as undo:
      place, begun = self.folder / NOISE_NAME, self.guard.log.mark
      rows = noise_rows.NoiseRows(
        self.strategy, size, folder=place, noise_seed=noise_seed, moved=moved, begun=begun
      )
      undo.callback(rows.close)
      path = self.folder / released.NAME
      table = released.ReleasedTable(path, coordinates, self.guard.log.run, self.next_round)
      undo.callback(table.close)
      self._noised = noised_sums.NoisedSums(
        self.template, coordinates, rows, table, self._records, zeroing_norm=self.zeroing_norm
      )
      rows.prepare()
      undo.pop_all()
    watching.begin(self)

  def __repr__(self) -> str:
    noise = f'noise_multiplier={self.noise_multiplier:g}{self._noised.coordinates.price}'
    text = f'{noise}, round {self.next_round} of {self.max_rounds}, {self.folder})'
    return messages.one_line(f'PrivateAggregator({self.strategy.family}, {text}', 120)

  def __exit__(self, *unused: Any) -> None:
    try:
      self.close()
    finally:
      self.close()  # If an interrupt ended the first early.

  @property
  def max_rounds(self) -> int:
    """Rounds that strategy, schema and budget allow."""
    return min(super().max_rounds, self._noised.rows.max_rows)

  @property
  def clip_norm(self) -> float:
    """L2 bound on the updates of the next round, or of the one that is open."""
    return self._noised.table.clip_norm

  @property
  def metric_names(self) -> tuple[str, ...]:
    """Names of the metrics that are released."""
    return self._noised.coordinates.metric_names

  def metrics(self, last: int | None = None) -> dict[str, release.Estimate]:
    """Returns the mean of each metric over released rounds, with the noise in it.

    A run that ends, or a model that is chosen, by it has the guarantee of all declared rounds.
    Where participation is drawn, or none is declared, no guarantee covers such an end.

    Args:
      last: the last released rounds only; None for all. ValueError without a release.
    """
    return self._noised.coordinates.estimates(self._noised.table.columns(), last)

  def round(
    self, device_ids: id_columns.Ids, *, at_least: int | None = None
  ) -> private_round.Round:
    """Returns the next round, of these devices, for a `with` block.

    Entering the block admits the devices and records them durably. Leaving it makes the mean.

    Args:
      device_ids: text or whole numbers, of one type through the run. Each adds one update at most.
        One that adds none is a participant all the same.
      at_least: with fewer updates the round fails. The divisor stays the report goal. None for the
        report goal, or for no limit where batches are drawn.

    Raises:
      ValueError: for at_least below 1 or beside sampling; when the block is entered, for malformed
        ids, fewer than the updates needed, a device twice, and devices that may not take part by
        schema or bin, whom `admissible` leaves out; nothing has changed then.
      BudgetSpentError, OSError: when the block is entered, if the round would pass the budget or
        the rounds that there are, or the log cannot be written; nothing has changed then.
    """
    least = self._least(at_least)
    admit = lambda: self._reserved([device_ids], least)[0]
    return self._round(least, admit, device_ids)

  def rounds(
    self, cohorts: Iterable[id_columns.Ids], *, reserve: int = 64, at_least: int | None = None
  ) -> Iterator[private_round.Round]:
    """Yields rounds of cohorts that are known before, each for a `with` block.

        for round_ in aggregator.rounds(batch_ids for batch_ids in batches):
          with round_:
            round_.add_batch(gradients(model, round_.device_ids))
          model = step(model, round_.mean)

    Cohorts are recorded durably, and their rows of noise marked as used, `reserve` rounds at a
    time, which costs as much as one. All of them took part then: rounds that were reserved and not
    computed, as where the loop ends, are used up and release nothing.

    Args:
      cohorts: device ids of each round, as `round` takes them.
      reserve: rounds to record at a time, at least 1.
      at_least: see `round`.

    Raises:
      ValueError, BudgetSpentError, OSError: see `round`; before the first round of those that are
        recorded together, and nothing has changed then.
    """
    reserve, least = checks.whole(reserve=reserve), self._least(at_least)
    # Up to the last round; one beyond it is refused.
    cohorts, room = iter(cohorts), lambda: max(1, self.max_rounds - self.next_round)
    while some := list(itertools.islice(cohorts, min(reserve, room()))):
      with self._turns.lock:
        reserved = self._reserved(some, least)
      for each in reserved:
        go_on = functools.partial(self._not_passed_over, each)
        yield self._round(least, go_on, each.device_ids, each.round_index)

  def subject(self, *, num_coordinates: int, seed: int | None = None) -> audited.Audited:
    """Returns what `dpftrl.audit` runs in place of this aggregator, in folders of its own."""
    names = ('noise_multiplier', 'clip_norm', 'report_goal', 'zeroing_norm')
    options = {name: getattr(self, name) for name in names} | {'kind': type(self)}
    return audited.Audited(self.strategy, num_coordinates=num_coordinates, seed=seed, **options)

  def _close_files(self) -> None:
    if self._noised is not None:  # The opening may have failed before.
      self._noised.close()

  def _round(self, least: int, *arguments: Any) -> private_round.Round:
    return private_round.Round(self._noised, least, self, self._turns, *arguments)

  def _least(self, at_least: int | None) -> int:
    """Returns the fewest updates of a round."""
    if at_least is None:
      return 0 if self.is_drawn else self.report_goal
    if self.is_drawn:  # A failed round would tell the size of a secret batch.
      raise ValueError('at_least is refused where participation is drawn: batches are of any size')
    return checked('at_least', at_least)

  def _reserved(self, cohorts: Sequence[id_columns.Ids], least: int) -> list[admission.Admission]:
    """Returns the next rounds, once their cohorts are recorded."""
    self._check_between_rounds()
    with self._turns.observers.failing(self, self.next_round):
      if self.next_round >= self._noised.rows.max_rows:  # Before anything is recorded.
        raise guards.BudgetSpentError(f'round {self.next_round} has no row of noise')
      return self.guard.reserve(cohorts, least=least)

  def _not_passed_over(self, reserved: admission.Admission) -> admission.Admission:
    """Returns a round that was reserved; ValueError if a later one has begun."""
    self._check_between_rounds()
    if reserved.round_index < self._noised.rows.next_row:
      raise ValueError(f'round {reserved.round_index} was passed over, as a later one was entered')
    return reserved

  def _check_between_rounds(self) -> None:
    self._turns.check()
    self._noised.rows.prepare()  # Refuses a fork before anything is recorded.
