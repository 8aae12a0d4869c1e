"""JSON file that lists several runs of one population.

Example: {"runs": [{"log": "first.parquet", "strategy": "blt-b400", "noise_multiplier": 8.0},
…]}. Further keys of a run are num_rounds, changes (pairs of a round and the noise multiplier
from that round on), restarts (rounds), declared_min_sep and declared_max_participations. The
noise multiplier, changes and restarts may be left out if the log states them. Paths are relative to
the file.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from fl_dpftrl import catalogue, json_files, messages, participation
from fl_dpftrl.families import base
from fl_dpftrl.logs import layout
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import runs as runs_lib

_REQUIRED = ('log', 'strategy')
_KINDS: dict[str, type | tuple[type, ...]] = {
  'log': (str, list),
  'strategy': str,
  'noise_multiplier': (int, float),
  'num_rounds': int,
  'changes': list,
  'restarts': list,
  'declared_min_sep': int,
  'declared_max_participations': int,
  'columns': str,
  'first_round': int,
}


def read(path: str | os.PathLike[str]) -> list[runs_lib.Run]:
  """Reads the runs that a file lists.

  Raises:
    ValueError: naming the file, the run by its place from 1, and the key.
    OSError: if it cannot be read.
  """
  path = pathlib.Path(path)
  document = json_files.read(path)
  entries = document.get('runs') if isinstance(document, dict) else None
  if not (isinstance(entries, list) and entries and len(document) == 1):
    raise ValueError(f'{path}: must be an object with a list of "runs" alone')
  runs = []
  for place, entry in enumerate(entries, 1):
    try:
      runs.append(_run(entry, path.parent))
    except ValueError as e:
      raise ValueError(f'{path}, run {place}: {e}') from e
  return runs


def _run(entry: Any, folder: pathlib.Path) -> runs_lib.Run:
  if not isinstance(entry, dict):
    raise ValueError(f'must be an object, got {messages.quoted(entry)}')
  for key in _REQUIRED:
    if key not in entry:
      raise ValueError(f'{key} is missing')
  for key, value in entry.items():
    if key not in _KINDS:
      raise ValueError(f'{messages.quoted(key)} is none of {", ".join(_KINDS)}')
    if isinstance(value, bool) or not isinstance(value, _KINDS[key]):
      raise ValueError(f'{key} must not be {messages.quoted(value)}')
  logs = entry['log'] if isinstance(entry['log'], list) else [entry['log']]
  if not logs or not all(isinstance(path, str) for path in logs):
    raise ValueError(f'log must not be {messages.quoted(entry["log"])}')
  strategy = entry['strategy']
  if os.path.isfile(folder / strategy):
    strategy = folder / strategy
  try:
    changes = None
    if 'changes' in entry:
      changes = tuple((t, m) for t, m in entry['changes'])
  except (TypeError, ValueError):
    raise ValueError(
      'changes must be pairs of a round and a noise multiplier, got'
      f' {messages.quoted(entry["changes"])}'
    ) from None
  multiplier = entry.get('noise_multiplier')
  return open_run(
    [folder / path for path in logs],
    strategy,
    noise_multiplier=multiplier if multiplier is None else float(multiplier),
    num_rounds=entry.get('num_rounds'),
    changes=changes,
    restarts=tuple(entry['restarts']) if 'restarts' in entry else None,
    declared_min_sep=entry.get('declared_min_sep'),
    declared_max_participations=entry.get('declared_max_participations'),
    columns=entry.get('columns'),
    first_round=entry.get('first_round', 0),
  )


def open_run(
  logs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
  strategy: base.Strategy | str | os.PathLike[str],
  *,
  noise_multiplier: float | None = None,
  num_rounds: int | None = None,
  changes: tuple[tuple[int, float], ...] | None = None,
  restarts: tuple[int, ...] | None = None,
  declared_min_sep: int | None = None,
  declared_max_participations: int | None = None,
  columns: str | None = None,
  first_round: int = 0,
) -> runs_lib.Run:
  """Opens the participation log of a run.

  Args:
    logs: one or more files, folders or globs, the shards of one log.
    strategy: C as it was run, or its strategy file or name in matrices/.
    noise_multiplier: std(Z) / clip norm in round 0; None if the log states it.
    num_rounds: rows of noise consumed, if the log does not say.
    changes: (round, multiplier) at each change of multiplier or clip norm; None to take them
      from the log.
    restarts: rounds at which the noise was restarted; None to take them from the log.
    declared_min_sep: min-sep that was declared before the run.
    declared_max_participations: maximum participations declared before the run. Without either,
      the schema that a guard recorded in the log is taken.
    columns: where the log has its columns, as in 'round=step,device_id=user_id'; None for their
      own names. 'device_id=hex(NAME)' is a column of bytes.
    first_round: number of the log's first round.

  Raises:
    LogError: if the log cannot be believed.
    ValueError: if an argument is out of range or missing, or the strategy file is malformed.
  """
  if isinstance(strategy, (str, os.PathLike)):
    strategy = catalogue.load_strategy(strategy)
  log = log_lib.read_log(logs, num_rounds=num_rounds, layout=layout.parse(columns, first_round))
  declared = None
  if (declared_min_sep, declared_max_participations) != (None, None):
    declared = participation.MinSep(
      num_rounds=log.num_rounds,
      min_sep=1 if declared_min_sep is None else declared_min_sep,
      max_participations=declared_max_participations,
    )
  return runs_lib.Run.of(
    log,
    strategy,
    noise_multiplier=noise_multiplier,
    changes=changes,
    restarts=restarts,
    declared_schema=declared,
  )
