"""Title, date and unit of privacy of a run, as its log's metadata may state them."""

import dataclasses
import datetime
from collections.abc import Mapping

from fl_dpftrl.files import json_files
from fl_dpftrl.logs import refusals

_PREFIX = 'fl_dpftrl.'
_LONGEST = 200


@dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
  """Words about a run for its report; None where nothing is stated.

  Attributes:
    title: title of the report, at most 200 characters.
    date: date that the report bears, as YYYY-MM-DD.
    unit: what one device stands for, such as 'a phone', at most 200 characters.
  """

  title: str | None = None
  date: str | None = None
  unit: str | None = None

  def __post_init__(self):
    for name, value in vars(self).items():
      if value is None:
        continue
      if not isinstance(value, str) or not value.strip() or len(value) > _LONGEST:
        raise ValueError(f'{name}={str(value)[:80]!r} must have 1 to {_LONGEST} characters')
      if not value.isprintable():
        raise ValueError(f'{name}={value[:80]!r} must be one line of printable characters')
    if self.date is not None:
      try:
        is_date = datetime.date.fromisoformat(self.date).isoformat() == self.date
      except ValueError:
        is_date = False
      if not is_date:
        raise ValueError(f'date={self.date!r} must be a date as YYYY-MM-DD')

  def metadata(self) -> dict[str, str]:
    """Returns the metadata of a log that state it."""
    return {_PREFIX + name: value for name, value in vars(self).items() if value is not None}

  def over(self, other: 'Description') -> 'Description':
    """Returns this description, and the other where this one states nothing."""
    own: json_files.Object = {k: v for k, v in vars(self).items() if v is not None}
    return dataclasses.replace(other, **own)


def read(metadata: Mapping[str, str]) -> Description:
  """Reads the description from a log's metadata."""
  names = (field.name for field in dataclasses.fields(Description))
  try:
    return Description(**{name: metadata.get(_PREFIX + name) for name in names})
  except ValueError as error:
    raise refusals.LogError(f'in the metadata of the log, {_PREFIX}{error}') from None
