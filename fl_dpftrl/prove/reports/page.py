"""Pages from templates: one HTML file each, which refers to nothing outside itself.

Templates escape every value, so text from a log or a flag cannot become markup.
Values that are not defined are errors.
"""

import functools
import math
import pathlib
from typing import Any

import jinja2
import markupsafe

from fl_dpftrl.support.text import messages, roundings

_TEMPLATES = pathlib.Path(__file__).parent / 'templates'
_LONGEST = 10_000  # characters of a command


def render(template: str, **values: Any) -> str:
  """Returns a filled template, in which no character is invisible."""
  return messages.lines(_environment().get_template(template).render(values))


@functools.cache
def _environment() -> jinja2.Environment:
  environment = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
  )
  environment.policies['json.dumps_kwargs'] = {'allow_nan': False}
  environment.globals['infinity'] = math.inf
  environment.filters |= {
    'up': roundings.up,
    'down': roundings.down,
    'computed': roundings.computed,
    'computed_down': roundings.computed_down,
    'exact': roundings.exact,
    'repr': repr,
    'quoted': messages.quoted,
    'one_line': lambda text: messages.one_line(text, limit=_LONGEST),
    'thousands': lambda value: f'{value:,}',
    'power_of_ten': power_of_ten,
  }
  return environment


def power_of_ten(value: float) -> markupsafe.Markup:
  """Writes δ as a power of ten, rounded up: 10⁻⁶ rather than 1e-06."""
  mantissa, exponent = f'{float(roundings.up(value, digits=7)):.6e}'.split('e')
  mantissa = mantissa.rstrip('0').rstrip('.')
  power = markupsafe.Markup('10<sup>{}</sup>').format(f'{int(exponent)}'.replace('-', '−'))
  return power if mantissa == '1' else markupsafe.Markup('{}·{}').format(mantissa, power)
