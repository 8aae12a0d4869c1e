"""Figures that grow with the log while a run trains."""

from experiments.stackoverflow import configuration, outcome
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import base
from fl_dpftrl.guarding import devices
from fl_dpftrl.logs import writer as log_writer
from fl_dpftrl.simulation import cohorts


class SoFar:
  """Simulated days, and ε in the worst case, of the log up to a round.

  It follows the open log, so that a call costs the rounds since the last one.

  Args:
    hparams: the run's flags.
    strategy: of the noise.
  """

  def __init__(self, hparams: configuration.Hparams, strategy: base.Strategy):
    self._hparams, self._strategy = hparams, strategy
    self._devices = devices.Devices()
    self._log: log_writer.LogWriter | None = None

  def follow(self, log: log_writer.LogWriter) -> None:
    """Takes the log that grows, before the first call."""
    self._log = log

  def __call__(self, num_rounds: int) -> dict[str, float]:
    """Returns the figures of the first num_rounds rounds."""
    log = self._log
    if log is None:
      raise ValueError('follow must be told the log before figures are taken from it')
    if num_rounds < self._devices.num_rounds:
      self._devices = devices.Devices()
    for t in range(self._devices.num_rounds, num_rounds):
      self._devices.add(log.cohort(t))
    last = log.timestamp(num_rounds - 1)
    days = 0.0 if last is None else (last - cohorts.START) / 86400.0
    measured = {'simulated_days': round(days, 4)}
    if outcome.void_reason(self._hparams) is None:
      measured['epsilon'] = gaussian.account(
        self._strategy,
        self._devices.schema(),
        noise_multiplier=self._hparams.noise_multiplier,
        delta=self._hparams.delta,
      ).epsilon
    return measured
