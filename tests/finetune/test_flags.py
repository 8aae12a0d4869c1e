"""Flags, and texts that are refused before anything is set up: one line, status 2, no package."""

import gzip
import subprocess
import sys

import pytest

from experiments.finetune import flags
from tests import made

CSV = b'person,text\nann,hello\nbob,"two\nlines"\ncid,x\n'


@made.cases(
  'name, content, words, message',
  ('none', None, [], 'is none of changelogs, docstrings, public, no file and no folder'),
  ('a.doc', b'text', [], 'must end in .jsonl'),
  ('a.csv', b'', [], 'begins with no row'),
  ('a.jsonl', b'\n', [], 'begins with no row'),
  ('a.csv', b'\xff\xfea', [], 'is not text in UTF-8'),
  ('a.csv', b'who,said\nann,x\n', [], 'has no column person (--person_column); it has who, s'),
  ('a.csv', CSV, ['--text_column=said'], 'has no column said (--text_column); it has person, text'),
  ('a.jsonl', b'{"person": "ann"\n', [], 'line 1 is not JSON'),
  ('a.jsonl', b'["ann", "x"]\n', [], 'line 1 must be an object'),
  ('a.jsonl', b'{"person": "ann"}\n', [], 'has no column text (--text_column); it has person'),
  ('a.csv.gz', CSV, [], 'Not a gzipped file'),
  ('a.csv.gz', gzip.compress(CSV, mtime=0)[:12], [], 'ended before the end-of-stream'),
  ('a.parquet', CSV, [], 'is not Parquet'),
  ('folder', None, [], 'has no .txt file, and no table'),
  ('s3://bucket/a.csv', None, [], 'is an address'),
  ('a.csv', CSV, ['--person_column=text'], '--person_column=text is --text_column too'),
  ('a.csv', CSV, ['--epsilon=0'], '--epsilon: 0 must be a number above 0'),
  ('a.csv', CSV, ['--learning_rate=nan'], '--learning_rate: nan must be a number above 0'),
  ('a.csv', CSV, ['--seed=-1'], '--seed: -1 must be a whole number from 0 to'),
  ('a.csv', CSV, ['--rank=2000'], '--rank: 2000 must be a whole number from 1 to 1,024'),
  ('a.csv', CSV, ['--rank=0'], '--rank: 0 must be a whole number from 1'),
  ('a.csv', CSV, ['--rounds=two'], '--rounds: two must be a whole number'),
  ('a.csv', CSV, ['--delta=1.0'], '--delta: 1.0 must be a number above 0 and below 1'),
  ('a.csv', CSV, ['--clip_quantile=1'], 'must be a number above 0 and below 1'),
  ('a.csv', CSV, ['--observer=neptune'], "--observer: invalid choice: 'neptune'"),
  ('a.csv', CSV, ['--mechanism=laplace'], "invalid choice: 'laplace'"),
  ('a.csv', CSV, ['--weights=none.gguf'], "--weights='none.gguf' is no file"),
)
def test_bad_input_is_one_line_with_status_2(name, content, words, message, tmp_path, capsys):
  path = name if '://' in name else str(tmp_path / name)
  if content is not None:
    (tmp_path / name).write_bytes(content)
  elif name == 'folder':
    (tmp_path / name).mkdir()
  with pytest.raises(SystemExit, match='2'):
    flags.parsed([f'--output_dir={tmp_path}', f'--text={path}', *words])
  error = capsys.readouterr().err
  assert message in error and error.count('\n') == 1 and len(error) <= 301


def test_good_input_is_taken_and_only_flags_that_were_given_are_settings(tmp_path):
  path = tmp_path / 'a.csv'
  path.write_bytes(b'\xef\xbb\xbf' + CSV)
  words = ['--output_dir=x', f'--text={path}', '--rank=2', '--private_loss', '--observer=jsonl']
  taken = flags.parsed(words)
  assert taken.given == {'rank': 2, 'private_loss': True} and taken.observer == ['jsonl']
  assert (taken.person_column, taken.text_column) == ('person', 'text')
  (tmp_path / 'a.jsonl.gz').write_bytes(gzip.compress(b'{"who": 1, "text": "a"}\n'))
  flags.parsed(['--output_dir=x', f'--text={tmp_path}/a.jsonl.gz', '--person_column=who'])
  flags.parsed(['--output_dir=x', f'--text={tmp_path}'])


def test_the_check_needs_no_other_package(tmp_path):
  """`make finetune` runs it before it makes an environment."""
  command = [sys.executable, '-S', '-m', 'experiments.finetune.flags', '--output_dir=x']
  run = lambda text: subprocess.run([*command, f'--text={text}'], capture_output=True, text=True)
  (tmp_path / 'a.csv').write_bytes(CSV)
  assert run(tmp_path / 'a.csv').returncode == 0
  refused = run(tmp_path / 'b.csv')
  assert refused.returncode == 2 and refused.stderr.count('\n') == 1
