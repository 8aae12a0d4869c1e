"""The error for a log that is opened with the metadata of another run."""

import os
from collections.abc import Mapping

from fl_dpftrl.logs import refusals, shards
from fl_dpftrl.text import messages

_DIFFERENCES = 2  # that are shown
_SHOWN = 40  # characters of a value


def error(
  path: str | os.PathLike[str], found: Mapping[str, str], given: Mapping[str, str]
) -> refusals.LogError:
  """Returns the error for a log that is opened with other metadata than it has.

  Args:
    path: the log.
    found, given: its metadata, and those that it is opened with; different ones.
  """
  differing = [key for key in sorted({*found, *given}) if found.get(key) != given.get(key)]
  said = [
    f'{key.removeprefix("fl_dpftrl.")} {_shown(found.get(key))}, not {_shown(given.get(key))}'
    for key in differing[:_DIFFERENCES]
  ]
  if len(differing) > _DIFFERENCES:
    said.append(f'{len(differing) - _DIFFERENCES} more')
  arguments = 'the same arguments'
  if {shards.NOISE_CHANGES_KEY, shards.NOISE_RESTARTS_KEY} & set(differing):
    arguments += ', changes and restarts'
  return refusals.LogError(
    f'{path}: its metadata are those of another run: {"; ".join(said)}; open it with {arguments}'
    ' as before'
  )


def _shown(value: str | None) -> str:
  """A metadata value in a message; digests and schemas are cut."""
  return 'none' if value is None else messages.one_line(value, _SHOWN)
