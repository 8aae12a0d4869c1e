"""Figures as tables of aligned text, such as results at a prompt; claims are rounded up."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fl_dpftrl.support.text import messages, roundings

Row = Mapping[str, Any]

# Rounding must not make these figures promise more than the exact values.
_CLAIMS = frozenset(
  {
    *('rho', 'mu', 'epsilon', 'same_noise_epsilon', 'claimed_epsilon'),
    *('noise_multiplier', 'effective_noise_multiplier'),
  }
)
# These are rounded up too, except that one rounding error above 10 gives 10.
_COMPUTED = frozenset(
  {
    *('sensitivity', 'rms_error', 'max_error', 'rms_loss', 'max_loss'),
    *('rms_error_of_mean', 'max_error_of_mean'),
  }
)
_DIGITS = 6
_LONGEST = 1000  # maximum number of characters of a cell
MOST_LINES = 12
"""Maximum number of lines of a result at a prompt."""


def table(result: Row) -> str:
  """Formats one aligned line per field, with six digits per number."""
  width = max(map(len, result)) + 2
  return '\n'.join(f'{name:<{width}}{figure(name, value)}' for name, value in result.items())


def columns(rows: Sequence[Row]) -> str:
  """Formats one aligned line per row under a header, with numbers to the right."""
  if not rows:
    return ''
  names = list(rows[0])
  cells = [names] + [[figure(n, row[n]) for n in names] for row in rows]
  widths = [max(map(len, column)) for column in zip(*cells)]
  is_text = [isinstance(rows[0][name], str) for name in names]
  return '\n'.join(
    '  '.join(
      f'{cell:<{width}}' if on_left else f'{cell:>{width}}'
      for cell, width, on_left in zip(line, widths, is_text)
    ).rstrip()
    for line in cells
  )


def shared_columns(rows: Sequence[Row], may_be_shared: Sequence[str]) -> tuple[dict[str, Any], str]:
  """Splits off the named columns that are equal in all rows; formats the rest."""
  shared = {
    name: rows[0][name] for name in may_be_shared if all(row[name] == rows[0][name] for row in rows)
  }
  return shared, columns(
    [{name: value for name, value in row.items() if name not in shared} for row in rows]
  )


def as_csv(names: Sequence[str], rows: Iterable[Row]) -> bytes:
  """Returns the content of a CSV file of rows, in full precision."""
  text = io.StringIO()
  writer = csv.DictWriter(text, names, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  return text.getvalue().encode()


def figure(name: str, value: Any) -> str:
  """Formats a figure as tables do, by its name."""
  if value is None:  # In JSON, an ε that is not proven.
    return roundings.UNBOUNDED if name == 'epsilon' else 'none'
  if name == 'seconds':
    return f'{value:.2f}'
  if isinstance(value, float) and name in _CLAIMS:
    return roundings.up(value, digits=_DIGITS)
  if isinstance(value, float) and name in _COMPUTED:
    return roundings.computed(value, digits=_DIGITS)
  if name == 'delta':
    return roundings.exact(value)
  if isinstance(value, float):
    return f'{value:.6g}'
  return messages.one_line(value, limit=_LONGEST)


def at_a_prompt(title: str, lines: Sequence[str]) -> str:
  """Returns a title and the first lines below it, in at most MOST_LINES lines."""
  most = MOST_LINES - 1
  if len(lines) > most:
    num_hidden = len(lines) - most + 1
    lines = [*lines[: most - 1], f'… and {num_hidden} more lines']
  return '\n'.join([title, *(f'  {line}' for line in lines)])
