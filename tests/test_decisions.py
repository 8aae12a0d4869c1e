"""Figures in the decision records are those that their own lines of code give."""

import pathlib
import re

import pytest

DECISIONS = pathlib.Path(__file__).parent.parent / 'docs' / 'decisions'


@pytest.mark.slow
def test_the_table_of_changing_clip_norms(capsys):
  text = (DECISIONS / 'adaptive-clipping.md').read_text()
  (program,) = re.findall(r'```python\n(.*?)```', text, re.S)
  exec(compile(program, 'adaptive-clipping.md', 'exec'), {})
  for line in capsys.readouterr().out.splitlines():
    name, *figures = line.split()
    row = f'| `{name}` | ' + ' | '.join(figures) + ' % |'
    assert row in text, row
