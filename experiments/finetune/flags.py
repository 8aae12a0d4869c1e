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

NAMES = ('changelogs', 'docstrings', 'public')  # sets of texts that machines have
# Classes of `dpftrl.observers`.
OBSERVERS = {name.lower(): name for name in ('JsonLines', 'TensorBoard', 'WandB', 'MLflow')}
_JSON, _CSV, _PARQUET = ('.jsonl', '.ndjson', '.jsonl.gz', '.ndjson.gz'), '.csv', '.parquet'
_TABLES = (*_JSON, _CSV, '.csv.gz', _PARQUET)
_LONGEST = 1 << 24  # bytes of a first line


def parsed(words: list[str] | None = None, description: str | None = None) -> Any:
  """Returns flags, those of `Settings` as `given`; ends the process with a line if one is wrong."""
  command = command_line.Parser('finetune', description)
  add = command.add_argument
  add('--output_dir', required=True, help='folder of the runs')
  add(
    '--text',
    help=f'one of {", ".join(NAMES)}, by default the first that has enough people; a table in JSON'
    ' lines, CSV or Parquet; a folder with a .txt file, or a folder of them, for each person',
  )
  add('--columns', default='person,text', help='columns of the name and the text in a table')
  add('--weights', type=pathlib.Path, help='GGUF file (default: SmolLM2-135M)')
  add('--observer', action='append', choices=OBSERVERS, default=[], help='repeat it for several')
  add('--skip_no_noise', action='store_true', help='leave out the run without noise')
  add('--dry_run', action='store_true', help='print the plan only')
  add('--moved', action='store_true', help='the folder was moved, and nobody used it since')
  add('--canaries', type=int, help='made-up devices by which `fl-dpftrl audit` measures the run')
  add('--secrets', type=int, default=0, help='made-up people, each with a secret in its text')
  for name, field in settings.FIELDS.items():
    add(f'--{name}', default=None, **field.metadata)
  flags = command.parse_args(words)
  try:
    flags.given = {n: v for n in settings.FIELDS if (v := getattr(flags, n)) is not None}
    settings.Settings(**flags.given)
    for name, least, most in (('secrets', 0, 1 << 16), ('canaries', 1, 1 << 22)):
      if (value := getattr(flags, name)) is not None and not least <= value <= most:
        raise ValueError(f'--{name}={value} must be from {least} to {most}')
    flags.columns = tuple(flags.columns.split(','))
    if len(set(flags.columns)) != 2 or len(flags.columns) != 2:
      raise ValueError(f'--columns={",".join(flags.columns)} must be two names, as person,text')
    if flags.weights is not None and not flags.weights.is_file():
      raise ValueError(f'--weights={messages.quoted(str(flags.weights))} is no file')
    if flags.text is not None and flags.text not in NAMES:
      _check_text(paths.local(flags.text), flags.columns)
  except (ValueError, OSError, EOFError, zlib.error) as problem:
    command.error(str(problem))
  return flags


def _check_text(path: pathlib.Path, columns: tuple[str, str]) -> None:
  """Raises ValueError for what is no text of people by its name, its size or its first line."""
  shown = f'--text={messages.quoted(str(path))}'
  if path.is_dir():
    if not any(file.name.endswith(('.txt', *_TABLES)) for file in path.rglob('*')):
      raise ValueError(f'{shown} has no .txt file, and no table in {", ".join(_TABLES)}')
    return
  if not (path.is_file() and path.name.endswith(_TABLES)):
    kinds = f'a file that ends in {", ".join(_TABLES)}'
    must = 'must be' if path.exists() else 'is not there; it must be'
    raise ValueError(f'{shown} {must} one of {", ".join(NAMES)}, a folder, or {kinds}')
  opened = gzip.open if path.suffix == '.gz' else open
  with opened(path, 'rb') as stream:
    line = stream.readline(_LONGEST)
  if not line:
    raise ValueError(f'{shown} is empty')
  if path.suffix == _PARQUET:
    if not line.startswith(b'PAR1'):
      raise ValueError(f'{shown} is not Parquet')
    return
  try:
    head = line.decode('utf-8-sig')
    names = json.loads(head) if path.name.endswith(_JSON) else next(csv.reader([head]), [])
  except (ValueError, RecursionError) as problem:
    raise ValueError(f'{shown}, line 1 is no row in UTF-8: {problem}') from None
  if path.name.endswith(_JSON) and not isinstance(names, dict):
    raise ValueError(f'{shown}, line 1 must be an object, as {{"person": …, "text": …}}')
  for name in columns:
    if name not in names:
      has = messages.one_line(', '.join(names), limit=80)
      raise ValueError(f'{shown} has no column {name} (--columns); it has {has or "no row"}')


if __name__ == '__main__':
  parsed()
