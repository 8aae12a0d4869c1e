"""Record of a run: who took part in which round, and what that proves."""

import os
import pathlib

from fl_dpftrl import accounting
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.files import durable, mark
from fl_dpftrl.logs import claim as claim_lib
from fl_dpftrl.logs import ledger as ledger_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import replay, runs, statement
from fl_dpftrl.rounds import guard
from fl_dpftrl.strategies import files


class Record:
  """The log of a run, which grows round by round, and its guarantee.

  Args:
    folder: of the run, with log and strategy file.
    claim: what the run claims; that of a log which is continued must be the same.
    max_epsilon: privacy budget by the schema; None for no limit.
    delta: δ.

  Raises:
    ValueError: for a budget that is too small for one round.
    LogError: for a log of another run.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    claim: claim_lib.Claim,
    *,
    max_epsilon: float | None = None,
    delta: float | None = None,
  ):
    self._folder, self._delta = folder, delta
    self._lock = durable.ThreadLock(folder)  # ε is of one claim, and counts each round once.
    self.is_closed = False
    self.guard = guard.Guard(
      claim, None if max_epsilon is None else delta, max_epsilon, log=folder / ledger_lib.NAME
    )
    self._claim, self._log = self.guard.claim, self.guard.log

  @property
  def num_rounds(self) -> int:
    """Rounds that were admitted."""
    return self._log.num_rounds

  def check_whole(self, used: int) -> None:
    """Raises LostStateError if the log lacks rounds of which rows were used."""
    if self._log.num_rounds < used:
      raise mark.LostStateError(
        f'{self._log.path} has {self._log.num_rounds} rounds, but {used} rows of noise were used:'
        ' without the whole log the run has no guarantee; put the newest log back'
      )

  def save(self) -> None:
    """Writes the files of strategy and claim, unless they are there."""
    path, claim = self._folder / files.NAME, self._claim
    if not path.exists():
      # A strategy file has figures for some schema; without one, for a single round.
      files.save_strategy(path, claim.strategy, schema=claim.schema or schemas.MinSep(1, 1))
    claim.save(self._folder)

  @durable.one_at_a_time
  def privacy_loss(self, delta: float | None) -> accounting.Guarantee:
    """Returns the loss of the rounds so far; see `PrivateAggregator.privacy_loss`."""
    claim = self._claim
    if claim.void_reason is not None:
      raise ValueError(f'there is no ε: {claim.void_reason}')
    delta = self.delta(delta)
    gate = self.guard.gate
    if gate is None or claim.sampling is not None:
      part = self.statement(delta).parts()[-1]
      if not part.holds:
        raise ValueError('there is no ε: the log contradicts the sampling')
      return part.guarantee
    if not self.num_rounds:
      raise ValueError('there is no round yet')
    return claim.guarantee(gate.seen.schema, delta)

  def evidence(self) -> runs.Run:
    """Returns log and noise as `replay` takes them; ValueError without any round."""
    if not self.num_rounds:
      raise ValueError('there is no round yet')
    return runs.Run.of(log_lib.read_log(self._log.path), self._claim.strategy)

  def statement(self, delta: float | None) -> statement.Statement:
    """Returns what the log proves of the rounds so far."""
    return replay.replay(self.evidence(), deltas=self.delta(delta))

  def delta(self, delta: float | None) -> float:
    """Returns δ as given, or that of the claim; ValueError without either."""
    delta = self._delta if delta is None else delta
    if delta is None:
      raise ValueError('delta must be given, here or to the aggregator')
    gaussian.check_delta(delta)
    return delta

  def command(self, delta: float) -> list[str | os.PathLike[str]]:
    """Returns the words of the command that replays the log."""
    names = (('log', ledger_lib.NAME), ('strategy', files.NAME))
    return [
      *('fl-dpftrl', 'replay'),
      *(f'--{flag}={self._folder / name}' for flag, name in names),
      f'--delta={delta}',
    ]

  @durable.one_at_a_time
  def close(self) -> None:
    """Turns the log into one Parquet file; nothing can be admitted then."""
    self.is_closed = True
    self._log.close()
