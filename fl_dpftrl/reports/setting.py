"""Information about a run that its report shows and its log lacks."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Information about a run that its log does not hold; None if not recorded.

  Attributes:
    run: name of the run.
    noise_multiplier: std(Z) / clip_norm.
    command: command that replays the log and reproduces the report's figures.
    dataset: training data, and its licence.
    unit: what one device stands for, such as 'a device' or 'a source file'.
    strategy: name or file by which the strategy was given.
    family: family of the strategy.
    clip_norm: L2 bound on one update.
    zeroing_norm: L∞ norm above which an update is dropped.
    report_goal: devices a round needs, the divisor of the sum.
    population: devices that could take part.
    void_reason: reason why the run guarantees nothing, if so; published, too.
    clipped_count: updates that were clipped, over all rounds.
    zeroed_count: updates dropped for their size.
    rejected_count: updates dropped as not finite.
    burnt_rounds: rounds whose row of noise was used up without a release.
    notes: further sentences, one each; published, too.
  """

  run: str
  noise_multiplier: float
  command: str
  dataset: str | None = None
  unit: str = 'a device'
  strategy: str | None = None
  family: str | None = None
  clip_norm: float | None = None
  zeroing_norm: float | None = None
  report_goal: int | None = None
  population: int | None = None
  void_reason: str | None = None
  clipped_count: int | None = None
  zeroed_count: int | None = None
  rejected_count: int | None = None
  burnt_rounds: tuple[int, ...] = ()
  notes: tuple[str, ...] = ()

  def publishable(self) -> 'Setting':
    """Returns what may be published: nothing counted, named or located.

    Names of runs and files can identify people and machines, and burnt rounds
    reveal what happened in single ones.
    """
    return Setting(
      run='',
      command='',
      noise_multiplier=self.noise_multiplier,
      dataset=self.dataset,
      unit=self.unit,
      clip_norm=self.clip_norm,
      zeroing_norm=self.zeroing_norm,
      report_goal=self.report_goal,
      void_reason=self.void_reason,
      notes=self.notes,
    )
