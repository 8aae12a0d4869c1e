"""Folders of studies: each holds one study, and one process at a time uses it."""

import contextlib
import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fl_dpftrl.files import durable, json_files
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import estimate
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.text import messages

STUDY_NAME = 'study.json'
LOCK_NAME = 'lock'
# Metric of a study.json that states none.
_ACCURACY = dataclasses.asdict(metric_lib.Metric())
_FIXED = ('mechanism', 'effective_noise_multiplier', 'noise_multiplier', 'flags')


def check(design: design_lib.Design, folder: pathlib.Path) -> None:
  """Refuses a folder with another study, or with anything else, in it.

  A study may have been given more settings, rates or seeds since.

  Raises:
    ValueError: naming the folder, and what differs.
  """
  path = folder / STUDY_NAME
  if not path.exists():
    own = {LOCK_NAME, cells_lib.STRATEGIES_NAME, cells_lib.CELLS_NAME, estimate.TIMING_NAME}
    if folder.exists() and any(
      entry.name not in own and not entry.name.startswith(durable.TEMPORARY_PREFIX)
      for entry in folder.iterdir()
    ):
      raise ValueError(f'{folder} holds other files; name a new folder')
    return
  before = json_files.read(path)
  now = json.loads(json.dumps(dataclasses.asdict(design)))
  try:
    differing = _changed(before['flags'], now['flags'])
    fixed = {'metric': _ACCURACY, **before}
    differing += [name for name in ('epsilon_of', 'metric') if fixed[name] != now[name]]
    same = {_key(setting): _content(setting) for setting in before['settings']}
  except (KeyError, TypeError):
    raise ValueError(f'{path} is not of a study; name a new folder') from None
  for setting in now['settings']:
    if same.get(_key(setting), _content(setting)) != _content(setting):
      differing.append(f'setting {_key(setting)}')
  if differing:
    raise ValueError(
      f'{folder} holds a study that differs in'
      f' {messages.one_line(", ".join(differing), limit=120)}; name another folder'
    )


def _changed(before: Sequence[str], now: Sequence[str]) -> list[str]:
  """Returns the names of the texts NAME=VALUE that are not in both."""
  changed = [text for text in (*before, *now) if (text in before) != (text in now)]
  if not changed and list(before) != list(now):
    return ['flags']  # Their order, and the last of a name counts.
  return list(dict.fromkeys(text.partition('=')[0] for text in changed))


def _key(setting: Mapping[str, Any]) -> str:
  """Returns what names a setting within a study."""
  label = (setting['mechanism'] or {}).get('label', design_lib.NO_NOISE)
  return f'{label} {setting["epsilon"]}'


def _content(setting: Mapping[str, Any]) -> list[Any]:
  """Returns the fields of a setting that must not change once it has runs."""
  return [setting[name] for name in _FIXED]


@contextlib.contextmanager
def held(design: design_lib.Design, task: cells_lib.Task, folder: pathlib.Path) -> Iterator[None]:
  """Holds the folder of a study that fits it; one that was made for nothing is gone again.

  Raises:
    ValueError: where another process holds it, or it has another study or other files.
  """
  cells_lib.check(design, task)
  check(design, folder)
  folder.mkdir(parents=True, exist_ok=True)
  lock = folder / LOCK_NAME
  with durable.exclusive(lock):
    for written in (folder, folder / cells_lib.STRATEGIES_NAME):
      durable.remove_leftovers(written)
    try:
      yield
    finally:
      with contextlib.suppress(OSError):
        for empty in (cells_lib.STRATEGIES_NAME, cells_lib.CELLS_NAME):
          os.rmdir(folder / empty)
      if {entry.name for entry in folder.iterdir()} == {LOCK_NAME}:
        lock.unlink()
        with contextlib.suppress(OSError):
          folder.rmdir()
