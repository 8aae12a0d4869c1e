"""Figures of a page, which programs read from its <data> elements."""

import re
from typing import Any


def figures(text: str) -> list[tuple[str, str]]:
  """(field, value) of every figure, in the order of the page."""
  found = re.findall(r'<data value="([^"]*)" data-field="([^"]*)">', text)
  assert len(found) == text.count('<data ')
  return [(field, value) for value, field in found]


def look_up(values: Any, field: str) -> Any:
  """The value of an object at a field: keys and indices, separated by dots."""
  for key in field.split('.'):
    values = values[int(key) if key.isdigit() else key]
  return values


def check(text: str, stated: Any) -> set[str]:
  """Fields of the figures, once each is found to be that of the object, to the last digit."""
  for field, value in figures(text):
    assert float(value) == look_up(stated, field), field
  return {field for field, _ in figures(text)}
