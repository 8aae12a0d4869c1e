"""The result of the checks of evidence."""

import dataclasses
from typing import NamedTuple

from fl_dpftrl.prove.replaying import statements
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files


class Check(NamedTuple):
  """One check: its name, the first 20 sentences about what does not fit, and what was compared."""

  name: str
  found: tuple[str, ...]
  detail: str = ''


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
  """Result of the checks of evidence; `statement` is what log and claim give, None if nothing."""

  digest: str
  checks: tuple[Check, ...]
  statement: statements.Statement | None = None

  def __repr__(self) -> str:
    shown = {c.name: f'failed: {c.found[0]}' if c.found else c.detail for c in self.checks}
    verdict = 'passed' if self.passed else f'failed: {", ".join(self.failed)}'
    return tables.at_a_prompt(f'Verification: {verdict}', tables.table(shown).splitlines())

  @property
  def failed(self) -> tuple[str, ...]:
    """Names of the checks that something does not fit."""
    return tuple(check.name for check in self.checks if check.found)

  @property
  def passed(self) -> bool:
    """True if every check passed."""
    return not self.failed

  def to_json(self) -> json_files.Object:
    """Returns the result, with each check."""
    checks = [
      {'name': c.name, 'passed': not c.found, 'found': list(c.found), 'detail': c.detail}
      for c in self.checks
    ]
    warnings = list(self.statement.warnings) if self.statement else []
    return {'passed': self.passed, 'digest': self.digest, 'checks': checks, 'warnings': warnings}
