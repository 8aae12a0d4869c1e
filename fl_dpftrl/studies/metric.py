"""Metrics of studies: which value is the better one, and how values are shown."""

import dataclasses
import math
import re
import textwrap

from fl_dpftrl.studies import intervals
from fl_dpftrl.text import messages

_NAME = re.compile(r'\w[\w@-]*( [\w@-]+)*')
_LONGEST = 40  # characters of a name, and of a line of an axis
_SPREAD_DIGITS = 2  # of what follows ±
_MOST_DIGITS = 8
_PLAIN = 1e-6, 1e9  # sizes that are shown without a power of ten


@dataclasses.dataclass(frozen=True)
class Metric:
  """Quantity by which a study compares models.

  An accuracy is a share from 0 to 1 and shown in percent. Any other metric is shown as it is.

  Attributes:
    name: name of the metric in the summaries of runs.
    lower_is_better: True for a loss or an error; False for an accuracy or a score.

  Raises:
    ValueError: naming `metric` or `lower_is_better`.
  """

  name: str = 'accuracy'
  lower_is_better: bool = False

  def __post_init__(self):
    name = self.name
    if not isinstance(name, str) or len(name) > _LONGEST or not _NAME.fullmatch(name):
      raise ValueError(
        f'metric must be a name of 1 to {_LONGEST} letters, digits, _, -, @ and single spaces, got'
        f' {messages.quoted(name)}'
      )
    if not isinstance(self.lower_is_better, bool):
      raise ValueError(
        f'lower_is_better must be true or false, got {messages.quoted(self.lower_is_better)}'
      )
    if self.is_accuracy and self.lower_is_better:
      raise ValueError('lower_is_better must be false for the metric accuracy')

  @classmethod
  def of(cls, name: str, lower_is_better: bool | None) -> 'Metric':
    """Returns a metric whose direction is stated, unless it is an accuracy.

    Raises:
      ValueError: naming `metric` or `lower_is_better`.
    """
    if lower_is_better is not None:
      return cls(name, lower_is_better)
    made = cls(name)
    if not made.is_accuracy:
      raise ValueError(
        f'lower_is_better must be given for the metric {messages.quoted(name)}: true for a loss or'
        ' an error, false for a score'
      )
    return made

  @property
  def is_accuracy(self) -> bool:
    """Returns whether values are shares from 0 to 1, shown in percent."""
    return self.name == 'accuracy'

  @property
  def scale(self) -> float:
    """Factor of values as they are shown."""
    return 100.0 if self.is_accuracy else 1.0

  @property
  def better(self) -> str:
    """Side of a value on which others are better."""
    return 'below' if self.lower_is_better else 'above'

  @property
  def worse(self) -> str:
    """Side of a value on which others are worse."""
    return 'above' if self.lower_is_better else 'below'

  @property
  def points(self) -> str:
    """Unit of a difference, after the number."""
    return ' points' * self.is_accuracy

  @property
  def key(self) -> str:
    """Name as a part of the names of columns and figures."""
    return self.name.replace(' ', '_')

  def gain(self, value: float) -> float:
    """Returns a value or difference with larger as better; of a gain, the value."""
    return -value if self.lower_is_better else value

  def label(self, words: str, unit: str = '%') -> str:
    """Returns words of a head or an axis, with the unit of accuracies if it is one."""
    return f'{words} ({unit})' if self.is_accuracy else words

  def axis(self, part: str, more: str = '') -> str:
    """Returns the label of an axis of 'test' or 'validation' values, and more words, in lines."""
    lines = textwrap.wrap(self.label(f'{part} {self.name}') + more, _LONGEST)
    return '\n'.join(lines + ['(lower is better)'] * self.lower_is_better)

  def shown(self, value: float) -> str:
    """Returns a value with its unit."""
    return self.number(value) + ' %' * self.is_accuracy

  def number(self, value: float, spread: float | None = None, digits: int = 4) -> str:
    """Returns a value without its unit, and ± its spread in as many decimals.

    Args:
      value: a value or a difference.
      spread: standard deviation or margin; None without one.
      digits: significant digits of the value; more where the spread needs them.
    """
    numbers = [self.scale * number for number in (value, spread) if number is not None]
    form = '.2f' if self.is_accuracy else _form(*numbers, digits=digits)
    return ' ± '.join(f'{number:{form}}' for number in numbers)

  def difference(self, difference: intervals.Difference) -> str:
    """Returns how much worse than another a mechanism is, without the unit, and ± the margin."""
    return self.number(difference.mean, difference.margin, digits=3)


def _form(value: float, spread: float = 0.0, *, digits: int) -> str:
  """Returns a format of as many decimals as value and spread need."""
  size = max(abs(value), spread)
  if not size or not _PLAIN[0] <= size < _PLAIN[1]:
    return f'.{digits - 1}e' if size else '.0f'
  decimals = digits - _order(size)
  if spread:
    decimals = min(max(decimals, _SPREAD_DIGITS - _order(spread)), _MOST_DIGITS - _order(size))
  return f'.{max(0, decimals)}f'


def _order(size: float) -> int:
  """Returns the number of digits before the decimal point; negative for zeros after it."""
  return math.floor(math.log10(size)) + 1
