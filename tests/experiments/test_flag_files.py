"""Files of flags: in place, and within limits."""

import pytest

from experiments.stackoverflow import flag_files
from tests import made


@pytest.fixture
def write(tmp_path):
  def write_file(name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path

  return write_file


def test_flags_are_put_in_place(write):
  inner = write('inner.flags', '--b=2\n')
  outer = write('outer.flags', f'# of a run\n\n--a=1\n  --flagfile={inner}\n// é\n')
  assert flag_files.expand(['--x', f'--flagfile={outer}', '--c=3']) == [
    '--x',
    '--a=1',
    '--b=2',
    '--c=3',
  ]
  assert flag_files.expand(['-flagfile', str(inner), 'rest']) == ['--b=2', 'rest']
  assert flag_files.expand(['--', f'--flagfile={inner}']) == ['--', f'--flagfile={inner}']


def test_a_flag_replaces_its_alternatives_in_files(write):
  inner = write('inner.flags', '--mechanism\nblt\n--noise_multiplier=0.5\n--timer_rounds=8\n')
  outer = write('outer.flags', f'--flagfile={inner}\n--epsilon=3\n')
  rest = ['--epsilon=3']
  assert flag_files.expand(['--strategy=identity', f'--flagfile={inner}']) == [
    '--strategy=identity',
    '--noise_multiplier=0.5',
    '--timer_rounds=8',
  ]
  assert flag_files.expand([f'--flagfile={outer}']) == [
    '--mechanism',
    'blt',
    '--timer_rounds=8',
    *rest,
  ]
  assert flag_files.expand([f'--flagfile={outer}', '--noise_multiplier=2', '--timer_hours=5']) == [
    '--mechanism',
    'blt',
    '--noise_multiplier=0.5',  # Overridden by the later one, as ever.
    '--noise_multiplier=2',
    '--timer_hours=5',
  ]
  both = ['--mechanism=banded', '--strategy=blt-b400']
  assert flag_files.expand([f'--flagfile={inner}', *both])[-2:] == both  # They do clash.


@made.cases(
  'content, words',
  (b'\xff--a=1', 'utf-8'),
  (b'--flagfile=SELF', 'names itself'),
  (b'--flagfile=', 'without the name'),
  (b'--' + b'noise' * 1000 + b'=1', 'not the name of a flag'),
  (b'#' * (2**24 + 1), 'more than 16777216 bytes'),
  ids=lambda value: repr(value)[:20],
)
def test_refuses(write, content, words):
  path = write('a.flags', content)
  path.write_bytes(content.replace(b'SELF', str(path).encode()))
  with pytest.raises(ValueError, match=words):
    flag_files.expand([f'--flagfile={path}'])
