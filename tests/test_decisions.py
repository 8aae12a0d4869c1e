"""Figures in the decision records are those that their own lines of code give."""

import pytest

from tests import pages

PAGE = 'decisions/adaptive-clipping.md'


@pytest.mark.slow
def test_the_table_of_changing_clip_norms(capsys):
  (program,) = pages.programs(PAGE)
  exec(compile(program, PAGE, 'exec'), {})
  text = (pages.DOCS / PAGE).read_text()
  for line in capsys.readouterr().out.splitlines():
    name, *figures = line.split()
    row = f'| `{name}` | ' + ' | '.join(figures) + ' % |'
    assert row in text, row
