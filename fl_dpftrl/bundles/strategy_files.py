"""Strategy files in bundles: each holds what follows from its run, and nothing else."""

import pathlib
import re
from collections.abc import Iterable, Sequence

from fl_dpftrl.accounting import run_noise
from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages


def save(path: pathlib.Path, noise: run_noise.RunNoise, place: int, schema: schemas.MinSep) -> None:
  """Writes a strategy of a run, with its figures under the schema of its longest stream.

  Args:
    path: the file.
    noise: noise of the run.
    place: which of the run's strategies, from 0.
    schema: the strictest schema that every device of the run kept to.
  """
  _, strategy = _strategies(noise)[place]
  files.save_strategy(path, strategy, schema=_schema(noise, place, schema))


def check(
  folder: pathlib.Path, name: str, file: str, *, made_by: str, listed: Iterable[str]
) -> tuple[checks_lib.Check, files.StrategyFile | None]:
  """Checks a strategy file by itself.

  Args:
    folder: the bundle.
    name: name of the check.
    file: name of the file.
    made_by: release that wrote the bundle.
    listed: names of all files in the manifest.

  Returns:
    The check; and the file, where it can be read.
  """
  path = folder / file
  arrays = {n for n in listed if re.fullmatch(rf'{re.escape(path.stem)}\.[0-9a-f]*\.npz', n)}
  try:
    found = files.load(path)
    named = next(iter(arrays), None)
    own = checks_lib.plain(files.document(found, named)) | {'made_by': made_by}
    stored = json_files.read(path)
    fits = named is None or named == files.arrays_name(path, (folder / named).read_bytes())
  except (ValueError, OSError) as error:
    return checks_lib.Check(name, (messages.one_line(error),)), None
  told = list(checks_lib.differences(stored, own, 'its parameters'))
  if len(arrays) > 1 or not fits:
    told.append(f'{file} has other arrays than those of its strategy')
  detail = f'{found.strategy.family}, its figures computed again'
  return checks_lib.Check(name, tuple(told), detail), found


def differences(
  names: Sequence[str],
  stored: Sequence[files.StrategyFile],
  noise: run_noise.RunNoise,
  schema: schemas.MinSep,
) -> dict[str, str]:
  """Returns a sentence for each strategy file whose setting is not that of its run, by a name.

  Args:
    names: names of the files.
    stored: the files of a run, in the order of its strategies.
    noise: noise of the run.
    schema: the strictest schema that every device of the run kept to.
  """
  told = {}
  for place, (name, file) in enumerate(zip(names, stored, strict=True)):
    own = _schema(noise, place, schema)
    if (file.schema, file.objective, file.workload.name) == (own, 'max', 'prefix'):
      continue
    numbers = ('min_sep', 'max_participations', 'num_rounds')
    others = [
      f'{number} is {getattr(file.schema, number)}, not {getattr(own, number)}'
      for number in numbers
      if getattr(file.schema, number) != getattr(own, number)
    ]
    detail = f': {", ".join(others)}' if others else ''
    told[f'min_sep of {name}'] = (
      f'{name} has another schema, objective or workload than its run{detail}'
    )
  return told


def _schema(noise: run_noise.RunNoise, place: int, schema: schemas.MinSep) -> schemas.MinSep:
  """Returns the schema of the longest stream of a strategy."""
  firsts = [t for t, _ in _strategies(noise)] + [noise.num_rounds]
  within = range(firsts[place], firsts[place + 1])
  return schema.within(max(s.num_rounds for s in noise.streams() if s.first_round in within))


def _strategies(noise: run_noise.RunNoise) -> list[tuple[int, base.Strategy]]:
  return [(0, noise.strategy), *noise.later_strategies]
