"""Traces of rounds in the files of a run's folder, beside its log.

A cohort is in the log before anything else of its round is on disk. So a log with fewer rounds than
another file shows is an older one, which was put back with its mark.
"""

import os
import pathlib
import re
from collections.abc import Mapping

from fl_dpftrl.logs import refusals
from fl_dpftrl.noise import trails
from fl_dpftrl.support import metrics

_NOISE, _CHECKPOINTS, _CANARIES = 'noise', 'checkpoints', 'canaries'
_TABLES = 'released.csv', metrics.NAME
# In folders: what is there once so many rounds were begun, or in one more than its number.
_CHECKPOINT, _RELEASE = re.compile(r'round-(\d{9})\.npz'), re.compile(r'release-(\d{9})\.npy')


def shown(folder: pathlib.Path) -> Mapping[pathlib.Path, int]:
  """Returns how many rounds were begun at least, by file; read it before the log of an open run."""
  rounds = {folder / _NOISE / trails.NAME: trails.num_rows(folder / _NOISE)}
  rounds |= {folder / name: _last_round(folder / name) + 1 for name in _TABLES}
  for name, pattern, added in ((_CHECKPOINTS, _CHECKPOINT, 0), (_CANARIES, _RELEASE, 1)):
    if os.access(inner := folder / name, os.R_OK):
      matches = map(pattern.fullmatch, os.listdir(inner))
      rounds |= {inner / match[0]: int(match[1]) + added for match in matches if match}
  return rounds


def check(rounds: Mapping[pathlib.Path, int], log: str, num_rounds: int) -> None:
  """Raises LogError for a log that has fewer rounds than another file of its folder shows."""
  for path, count in rounds.items():
    if count > num_rounds:
      raise refusals.LogError(
        f'{log}: has {num_rounds} rounds, and {path} is of round {count - 1}: put the newest log'
        ' back, with its ledger and mark'
      )


def _last_round(path: pathlib.Path) -> int:
  """Returns the last round of a table whose first column has rounds; −1 without any."""
  try:
    header, *lines = path.read_text('utf-8', 'replace').splitlines()
  except (OSError, ValueError):
    return -1
  cells = [line.partition(',')[0] for line in lines]
  rounds = [int(cell) for cell in cells if cell.isascii() and cell.isdigit() and len(cell) < 19]
  return max(rounds, default=-1) if header.partition(',')[0] == 'round' else -1
