"""Noised means of updates, round by round, for any training loop."""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates, run_claim
from fl_dpftrl.claims.lattice_units import checked
from fl_dpftrl.logs import id_columns, ledger_format, participation_log, unit_tables
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accounting, registry
from fl_dpftrl.participation.accounting import arithmetics, gaussian
from fl_dpftrl.prove.replaying import opened_runs, publication, replays, statements
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.run import (
  admission,
  audited,
  budget,
  continued_claims,
  guards,
  noise_rows,
  private_round,
  release,
  released,
  status,
  structures,
  sums,
)
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

NOISE_NAME = 'noise'


class PrivateAggregator(contextlib.AbstractContextManager['PrivateAggregator']):
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

  def __init__(
    self,
    strategy: files.Given,
    *,
    template: Any,
    noise_multiplier: float | None = None,
    clip_norm: float | adaptive_clipping.AdaptiveClipping,
    report_goal: int,
    folder: str | os.PathLike[str],
    participation: registry.Participation | None = None,
    max_epsilon: float | None = None,
    delta: float | None = None,
    zeroing_norm: float | None = None,
    metrics: Mapping[str, float] | None = None,
    metrics_stddev: float | None = None,
    earlier: Sequence[opened_runs.Given] = (),
    noise_seed: int | None = None,
    moved: bool = False,
    observers: Sequence[observer.Observer] = (),
    units: unit_tables.Given | None = None,
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
      folder: made where it does not exist.
      participation: schema that devices keep to; rounds with others are refused. Or the scheme by
        which batches of examples are drawn in secret, for training in one place: ε is then that of
        the scheme, where the log does not contradict it, and a round may have fewer updates than
        the report goal. None for no limit.
      max_epsilon: privacy budget of this folder by the schema: rounds that would pass it are
        refused. None for no limit. Another folder with the same devices spends more.
      delta: δ of the budget, and of `privacy_loss` and `statement` where they are given none.
      zeroing_norm: L∞ norm above which an update is zeroed; None for no limit.
      metrics: name → public upper bound of a metric of clients, whose values are from 0 to it.
        Their means are released with noise, under the same guarantee as the model.
      metrics_stddev: see `claims.extra_coordinates.PrivateMetrics`.
      earlier, units: runs of the same devices, and the table of who owns which; see `Guard`.
      noise_seed, moved: see `NoiseRows`.
      observers: see rounds; `fl_dpftrl.run.observers` has some. Their errors are warnings.

    Raises:
      ValueError: for an argument that will not do, and a folder of another run or in use.
      LostStateError: if files without which rows could repeat are missing, damaged or copies.
    """
    strategy = files.resolved(strategy)
    if participation is not None:
      registry.check(participation)
    self.strategy, self.participation, self.exact_metrics = strategy, participation, ()
    self.is_drawn = participation is not None and participation.is_drawn
    self.folder, self.delta, self.max_epsilon = paths.local(folder), delta, max_epsilon
    self._observers = observer.Observers(observers, self.folder, warns=True)
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
    self.void_reason = run_claim.void_reason(self.noise_multiplier, noise_seed)
    claim = run_claim.Claim(
      strategy=strategy,
      noise_multiplier=self.noise_multiplier,
      clip_norm=clip_norm,
      report_goal=self.report_goal,
      private_metrics=private_metrics,
      participation=participation,
      # No bound is known for amplified guarantees.
      arithmetic=arithmetics.Arithmetic.of(self.noise_multiplier, size, not self.is_drawn),
      void_reason=self.void_reason,
    )
    budget.check(claim, max_epsilon, delta)
    claim = continued_claims.continued(claim, self.folder)
    self.strategy, self.noise_multiplier = claim.strategy, claim.noise_multiplier
    self._released = release.Release(claim, self.template.size)
    self._sum = sums.Sum(size, unit=self._released.unit, zeroing_norm=self.zeroing_norm)
    self._lock, self._is_closed = durable.ThreadLock(self.folder), False  # Of rounds that begin.
    self._open: private_round.Round | None = None
    # Whoever knows the batches has no amplified guarantee.
    self.folder.mkdir(0o700 if self.is_drawn else 0o777, parents=True, exist_ok=True)
    spent, log = None if max_epsilon is None else delta, self.folder / ledger_format.NAME
    self._guard = guards.Guard(claim, spent, max_epsilon, log=log, earlier=earlier, units=units)
    self.claim = self._guard.claim
    with contextlib.ExitStack() as undo:
      undo.callback(self._guard.log.release)
      place, begun = self.folder / NOISE_NAME, self._guard.log.mark
      self._rows = noise_rows.NoiseRows(
        self.strategy, size, folder=place, noise_seed=noise_seed, moved=moved, begun=begun
      )
      undo.callback(self._rows.close)
      self.claim.save(self.folder, self._guard.log.run, begun=self.next_round > 0)
      path = self.folder / released.NAME
      run = self._guard.log.run
      self._table = released.ReleasedTable(path, self._released, run, self.next_round)
      undo.callback(self._table.close)
      self._rows.prepare()
      undo.pop_all()
    self._observers.begin(self)

  def __repr__(self) -> str:
    noise = f'noise_multiplier={self.noise_multiplier:g}{self._released.price}'
    text = f'{noise}, round {self.next_round} of {self.max_rounds}, {self.folder})'
    return messages.one_line(f'PrivateAggregator({self.strategy.family}, {text}', 120)

  def __exit__(self, *unused) -> None:
    self.close()

  @property
  def next_round(self) -> int:
    """The first round that is not recorded, which `round` begins, and its row of noise."""
    return self._guard.num_rounds

  @property
  def identity(self) -> str:
    """Random name of the run, as its log has it."""
    return self._guard.log.run

  @property
  def max_rounds(self) -> int:
    """Rounds that strategy, schema and budget allow."""
    planned = self._guard.max_rounds
    return self._rows.max_rows if planned is None else min(planned, self._rows.max_rows)

  @property
  def clip_norm(self) -> float:
    """L2 bound on the updates of the next round, or of the one that is open."""
    return self._table.clip_norm

  @property
  def metric_names(self) -> tuple[str, ...]:
    """Names of the metrics that are released."""
    return self._released.metric_names

  def metrics(self, last: int | None = None) -> dict[str, release.Estimate]:
    """Returns the mean of each metric over released rounds, with the noise in it.

    A run that ends, or a model that is chosen, by it has the guarantee of all declared rounds.
    Where participation is drawn, or none is declared, no guarantee covers such an end.

    Args:
      last: the last released rounds only; None for all. ValueError without a release.
    """
    return self._released.estimates(self._table.columns(), last)

  def extend_units(self, units: unit_tables.Given) -> None:
    """Takes a table of units over that has further rows, from the next round on."""
    self._guard.extend_units(units)

  def require_new(self) -> None:
    """Raises LostStateError if there were rounds, for a loop that finds no model; see `Guard`."""
    self._guard.require_new()

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
      BudgetSpentError: when the block is entered, if the round would pass the budget, or the rounds
        that there are.
      OSError: when the block is entered, if the log cannot be written; nothing has changed then.
    """
    return private_round.Round(self, device_ids, self._least(at_least))

  def rounds(
    self, cohorts: Iterable[id_columns.Ids], *, reserve: int = 64, at_least: int | None = None
  ) -> Iterator[private_round.Round]:
    """Yields rounds of cohorts that are known before, each for a `with` block.

        for round_ in aggregator.rounds(batch_ids for batch_ids in batches):
          with round_:
            round_.add_batch(gradients(model, round_.device_ids))
          model = step(model, round_.mean)

    Cohorts are recorded durably, and their rows of noise marked as used, `reserve` rounds at a
    time, which costs as much as one. All of them took part then: if the process is killed or the
    loop ends, the rounds that were reserved and not computed are used up, and release nothing.

    Args:
      cohorts: device ids of each round, as `round` takes them.
      reserve: rounds to record at a time, at least 1.
      at_least: see `round`.

    Raises:
      ValueError, BudgetSpentError, OSError: see `round`; before the first round of those that are
        recorded together, and nothing has changed then.
    """
    reserve, least = checks.whole(reserve=reserve), self._least(at_least)
    cohorts = iter(cohorts)
    # Up to the last round; one beyond it is refused.
    while some := list(
      itertools.islice(cohorts, min(reserve, max(1, self.max_rounds - self.next_round)))
    ):
      with self._lock:
        admitted = self._admitted(some, least)
      for each in admitted:
        yield private_round.Round(self, each.device_ids, least, each.round_index)

  def admissible(self, device_ids: id_columns.Ids, *, at_most: int | None = None) -> np.ndarray:
    """Returns those that may take part in the next round by schema or bin, in their order.

    Args:
      device_ids: candidates; ValueError for one whose id no log takes.
      at_most: size of the cohort; None for all, as where participation is drawn.
    """
    return self._guard.check(device_ids, at_most=at_most).device_ids

  def privacy_loss(self, delta: float | None = None) -> accounting.Guarantee:
    """Returns the worst case of the rounds so far by the log, or their loss by the sampling.

    Rounds that follow add to it: promise `statement().headline`, that of all declared rounds.

    Raises:
      ValueError: before the first round, without delta, for a run that guarantees nothing, and for
        a log that contradicts the sampling.
    """
    if self.void_reason is not None:
      raise ValueError(f'there is no ε: {self.void_reason}')
    delta = self._delta(delta)
    with self._lock:
      if not self.is_drawn:
        return self._begun().privacy_loss(delta)
      part = self.statement(delta).parts[-1]
    if not part.holds:
      raise ValueError('there is no ε: the log contradicts the sampling')
    return part.guarantee

  def status(self) -> status.Status:
    """Returns public figures of the run: rounds, ε so far, what is left of budget and disk."""
    return status.current(self._guard, self)

  def statement(self, delta: float | None = None) -> statements.Statement:
    """Returns what the log proves of the rounds so far."""
    log = participation_log.read_log(self._begun().log.path)
    run = opened_runs.RecordedRun.of(log, self.strategy, self._guard.units)
    return replays.replay(run, delta=self._delta(delta))

  def report(self, path: str | os.PathLike[str], delta: float | None = None) -> None:
    """Writes the statement as a page, HTML, for the run's owner."""
    delta = self._delta(delta)
    from fl_dpftrl.prove.reports import (
      privacy,  # Loads matplotlib, which wants a folder to write to.
    )

    setting = settings.Setting(
      run=self.folder.resolve().name,
      zeroing_norm=self.zeroing_norm,
      max_epsilon=self.max_epsilon,
      command=publication.command_of_folder(self.folder, delta, self._guard.units is not None),
    )
    privacy.write_report(path, self.statement(delta), setting=setting)

  def subject(self, *, num_coordinates: int, seed: int | None = None) -> audited.Audited:
    """Returns what `dpftrl.audit` runs in place of this aggregator, in folders of its own."""
    return audited.Audited(self, num_coordinates=num_coordinates, seed=seed)

  def close(self) -> None:
    """Turns the log into one Parquet file, and lets another process use the folder.

    A round that is open has failed then.
    """
    if self._is_closed:
      return
    if self._open is not None:
      with contextlib.suppress(ValueError):  # Another thread ends it meanwhile.
        self._open.fail()
    with self._lock:
      self._is_closed = True
      self._guard.close()
    self._rows.close()
    self._table.close()
    self._observers.end(self)

  def _begun(self) -> guards.Guard:
    """Returns the guard; ValueError before the first round."""
    if not self._guard.num_rounds:
      raise ValueError('there is no round yet')
    return self._guard

  def _delta(self, delta: float | None) -> float:
    """Returns δ as given, or that of the aggregator; ValueError without either."""
    delta = self.delta if delta is None else delta
    if delta is None:
      raise ValueError('delta must be given, here or to the aggregator')
    gaussian.check_delta(delta)
    return delta

  def _least(self, at_least: int | None) -> int:
    """Returns the fewest updates of a round."""
    if at_least is None:
      return 0 if self.is_drawn else self.report_goal
    if self.is_drawn:  # A failed round would tell the size of a secret batch.
      raise ValueError('at_least is refused where participation is drawn: batches are of any size')
    return checked('at_least', at_least)

  def _admitted(self, cohorts: Sequence[id_columns.Ids], least: int) -> list[admission.Admission]:
    self._check_between_rounds()
    with self._observers.failing(self, self.next_round):
      if self.next_round >= self._rows.max_rows:  # Before anything is recorded.
        raise guards.BudgetSpentError(f'round {self.next_round} has no row of noise')
      return self._guard.reserve(cohorts, least=least)

  def _check_between_rounds(self) -> None:
    """Raises ValueError if the aggregator is closed, or a round is open."""
    if self._is_closed:
      raise ValueError('the aggregator is closed; make it again to go on')
    if self._open is not None:
      raise ValueError(f'round {self._open.index} is still open')
    self._rows.prepare()  # Refuses a fork before anything is recorded.

  def _release(self, t: int, like: Any) -> tuple[Any, dict[str, float]]:
    """Returns the mean and the metrics of round t; its row is used from then on."""
    total, row = self._sum.total, None
    if self.noise_multiplier:
      row = self._rows.integers(t)
    else:
      self._rows.skip_to(t + 1)
    mean = self._released.mean(total, row, self.clip_norm, max(self.template.dtypes))
    beside = self._released.beside(total, row)
    self._table.put(t, beside)
    like = self.template.empty() if like is None else like
    return self.template.packed(mean, like), beside
