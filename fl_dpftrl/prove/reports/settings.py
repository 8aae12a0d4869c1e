"""Information about a run that its report shows and its log lacks."""

import dataclasses

from fl_dpftrl.prove.auditing import run_audit
from fl_dpftrl.prove.replaying import verdicts


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """Information about a run that its log does not hold; None if not recorded.

  Attributes:
    command: command that replays the log and reproduces the report's figures.
    dataset: training data, and its licence.
    unit: what one device stands for, such as 'a device' or 'a source file'.
    strategy: name or file by which the strategy was given.
    zeroing_norm: L∞ norm above which an update is dropped.
    claimed: ε that is claimed at most, and at which δ.
    burnt_rounds: rounds whose row of noise was used up without a release.
    canaries: audit of the run by its canaries.
  """

  run: str = ''
  command: str = ''
  dataset: str | None = None
  unit: str = 'a device'
  strategy: str | None = None
  zeroing_norm: float | None = None
  population: int | None = None
  clipped_count: int | None = None
  zeroed_count: int | None = None
  rejected_count: int | None = None
  claimed: verdicts.ClaimedEpsilon | None = None
  burnt_rounds: tuple[int, ...] | None = None
  canaries: run_audit.RunAudit | None = None

  def publishable(self) -> 'Setting':
    """Returns what may be published: nothing counted, named or located.

    Names of runs and files can identify people and machines, and burnt rounds
    reveal what happened in single ones.
    """
    names = ('dataset', 'unit', 'zeroing_norm', 'claimed')
    return Setting(**{name: getattr(self, name) for name in names})
