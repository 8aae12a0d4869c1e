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
  ('none', None, [], 'is not there; it must be one of changelogs, docstrings, public, a folder'),
  ('a.jsonl', b'', [], "a.jsonl' is empty"),
  ('a.doc', b'text', [], 'a file that ends in .jsonl'),
  ('a.csv', b'\n', [], 'has no column person (--columns); it has no row'),
  ('a.jsonl', b'\n', [], 'line 1 is no row in UTF-8: Expecting value'),
  ('a.csv', b'\xff\xfea', [], 'line 1 is no row in UTF-8'),
  ('a.csv', b'who,said\nann,x\n', [], 'has no column person (--columns); it has who, s'),
  ('a.csv', CSV, ['--columns=person,said'], 'has no column said (--columns); it has person, text'),
  ('a.jsonl', b'{"person": "ann"\n', [], 'line 1 is no row in UTF-8: '),
  ('a.jsonl', b'["ann", "x"]\n', [], 'line 1 must be an object'),
  ('a.jsonl', b'{"person": "ann"}\n', [], 'has no column text (--columns); it has person'),
  ('a.csv.gz', CSV, [], 'Not a gzipped file'),
  ('a.csv.gz', gzip.compress(CSV, mtime=0)[:12], [], 'ended before the end-of-stream'),
  ('a.parquet', CSV, [], 'is not Parquet'),
  ('folder', None, [], 'has no .txt file, and no table'),
  ('s3://bucket/a.csv', None, [], 'is an address'),
  ('a.csv', CSV, ['--columns=text'], '--columns=text must be two names'),
  ('a.csv', CSV, ['--columns=text,text'], '--columns=text,text must be two names'),
  ('a.csv', CSV, ['--epsilon=0'], '--epsilon: 0 must be a number from 0.001 to 1000'),
  ('a.csv', CSV, ['--learning_rate=nan'], '--learning_rate: nan must be a number from 1e-09'),
  ('a.csv', CSV, ['--seed=-1'], '--seed: -1 must be a whole number from 0 to'),
  ('a.csv', CSV, ['--rank=2000'], '--rank: 2000 must be a whole number from 1 to 1024'),
  ('a.csv', CSV, ['--rank=0'], '--rank: 0 must be a whole number from 1'),
  ('a.csv', CSV, ['--rounds=two'], '--rounds: two must be a whole number'),
  ('a.csv', CSV, ['--delta=1.0'], '--delta: 1.0 must be a number from 1e-30 to 0.1'),
  ('a.csv', CSV, ['--clip_quantile=1'], 'must be a number from 0.01 to 0.99'),
  ('a.csv', CSV, ['--rounds_per_person=15'], '--rounds_per_person=15 must be at most --rounds=14'),
  ('a.csv', CSV, ['--observer=neptune'], "--observer: invalid choice: 'neptune'"),
  ('a.csv', CSV, ['--secrets=-1'], '--secrets=-1 must be from 0 to 65536'),
  ('a.csv', CSV, ['--secrets=9999999999999'], '=9999999999999 must be from 0 to 65536'),
  ('a.csv', CSV, ['--canaries=0'], '--canaries=0 must be from 1 to 4194304'),
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
  words = ['--output_dir=x', f'--text={path}', '--rank=2', '--private_loss', '--observer=jsonlines']
  taken = flags.parsed(words)
  assert taken.given == {'rank': 2, 'private_loss': True} and taken.observer == ['jsonlines']
  assert taken.columns == ('person', 'text')
  (tmp_path / 'a.jsonl.gz').write_bytes(gzip.compress(b'{"who": 1, "text": "a"}\n'))
  flags.parsed(['--output_dir=x', f'--text={tmp_path}/a.jsonl.gz', '--columns=who,text'])
  flags.parsed(['--output_dir=x', f'--text={tmp_path}'])


def test_the_check_needs_no_other_package(tmp_path):
  """`make finetune` runs it before it makes an environment."""
  command = [sys.executable, '-S', '-m', 'experiments.finetune.flags', '--output_dir=x']
  run = lambda text: subprocess.run([*command, f'--text={text}'], capture_output=True, text=True)
  (tmp_path / 'a.csv').write_bytes(CSV)
  assert run(tmp_path / 'a.csv').returncode == 0
  refused = run(tmp_path / 'b.csv')
  assert refused.returncode == 2 and refused.stderr.count('\n') == 1
