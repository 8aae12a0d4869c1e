"""Flags of fine-tuning, and what can be checked of them and of text without other packages.

`make finetune` runs it before anything is set up: python -m experiments.finetune.flags --text=a.csv
"""

import csv
import gzip
import json
import pathlib
import zlib
from typing import Any

from experiments.finetune import settings
from experiments.stackoverflow import command_line
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages

NAMES = ('changelogs', 'docstrings', 'public')
"""Sets of texts that machines have."""

COLUMN_FLAGS = ('person_column', 'text_column')
OBSERVERS = ('jsonl', 'tensorboard', 'wandb', 'mlflow')
_JSON, _CSV, _PARQUET = ('.jsonl', '.ndjson'), ('.csv',), '.parquet'
_TABLES = (*_JSON, *_CSV, '.jsonl.gz', '.ndjson.gz', '.csv.gz', _PARQUET)
_LONGEST = 1 << 24  # characters of a first line


def parsed(words: list[str] | None = None, description: str | None = None) -> Any:
  """Returns checked flags, with those of `Settings` that were given as `given`.

  Anything wrong ends the process with status 2 and one line.
  """
  command = command_line.Parser('finetune', description)
  add = command.add_argument
  add('--output_dir', required=True, help='folder of the runs')
  add(
    '--text',
    help=f'one of {", ".join(NAMES)}; a table in JSON lines, CSV or Parquet; or a folder with a'
    ' .txt file, or a folder of them, for each person (default: changelogs where the machine has'
    ' enough of them, else docstrings)',
  )
  add('--person_column', default='person', help='column of the name in a table')
  add('--text_column', default='text', help='column of the text in a table')
  add('--weights', type=pathlib.Path, help='GGUF file (default: SmolLM2-135M)')
  add('--observer', action='append', choices=OBSERVERS, default=[], help='repeat it for several')
  add('--skip_no_noise', action='store_true', help='leave out the run without noise')
  add('--dry_run', action='store_true', help='print the plan only')
  add('--force', action='store_true', help='train where the plan says that it is hopeless')
  add('--canaries', type=int, help='made-up devices by which `fl-dpftrl audit` measures the run')
  add('--secrets', type=int, default=0, help='made-up people, each with a secret in its text')
  for name, field in settings.FIELDS.items():
    add(f'--{name}', default=None, **field.metadata)
  flags = command.parse_args(words)
  try:
    flags.given = {n: v for n in settings.FIELDS if (v := getattr(flags, n)) is not None}
    if flags.person_column == flags.text_column:
      raise ValueError(f'--person_column={flags.text_column} is --text_column too')
    if flags.weights is not None and not flags.weights.is_file():
      raise ValueError(f'--weights={messages.quoted(str(flags.weights))} is no file')
    if flags.text is not None and flags.text not in NAMES:
      _check_text(paths.local(flags.text), flags)
  except (ValueError, OSError, EOFError, zlib.error) as problem:
    command.error(str(problem))
  return flags


def _check_text(path: pathlib.Path, flags: Any) -> None:
  """Raises ValueError for what is no text of people by its name, its size or its first line."""
  shown = f'--text={messages.quoted(str(path))}'
  if path.is_dir():
    if not any(file.name.endswith(('.txt', *_TABLES)) for file in path.rglob('*')):
      raise ValueError(f'{shown} has no .txt file, and no table in {", ".join(_TABLES)}')
    return
  if not path.is_file():
    raise ValueError(f'{shown} is none of {", ".join(NAMES)}, no file and no folder')
  if not path.name.endswith(_TABLES):
    raise ValueError(f'{shown} must end in {", ".join(_TABLES)}, or be a folder')
  if path.suffix == _PARQUET:
    with path.open('rb') as stream:
      if stream.read(4) != b'PAR1':
        raise ValueError(f'{shown} is not Parquet')
    return
  opened = gzip.open if path.suffix == '.gz' else open
  try:
    with opened(path, 'rt', encoding='utf-8-sig', newline='') as stream:
      head = stream.readline(_LONGEST)
  except UnicodeDecodeError:
    raise ValueError(f'{shown} is not text in UTF-8; convert it, as by iconv -t UTF-8') from None
  if not head.strip():
    raise ValueError(f'{shown} begins with no row; it must have one for each text')
  names = (
    _names_in_json(head, shown)
    if _JSON[0] in path.suffixes or _JSON[1] in path.suffixes
    else next(csv.reader([head]))
  )
  for flag in COLUMN_FLAGS:
    if (name := getattr(flags, flag)) not in names:
      has = messages.one_line(', '.join(names), limit=80)
      raise ValueError(f'{shown} has no column {name} (--{flag}); it has {has}')


def _names_in_json(head: str, shown: str) -> list[str]:
  try:
    row = json.loads(head)
  except (ValueError, RecursionError) as problem:
    raise ValueError(f'{shown}, line 1 is not JSON: {problem}') from None
  if not isinstance(row, dict):
    raise ValueError(f'{shown}, line 1 must be an object, as {{"person": …, "text": …}}')
  return list(row)


if __name__ == '__main__':
  parsed()
