"""Strategy files in bundles: each holds what follows from its run, and nothing else."""

import pathlib
import re

from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.files import json_files
from fl_dpftrl.replaying import facts
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages


def save(path: pathlib.Path, run: facts.RunFacts) -> None:
  """Writes the strategy of a run, with its figures under the schema that the log shows."""
  files.save_strategy(path, run.noise.strategy, schema=run.schema)


def check(
  bundle: checks_lib.Opened, name: str, file: str
) -> tuple[checks_lib.Check, files.StrategyFile | None]:
  """Checks a strategy file by itself.

  Returns:
    The check; and the file, where it can be read.
  """
  path, manifest = bundle.folder / file, bundle.manifest
  arrays = [
    n for n in manifest.files if re.fullmatch(rf'{re.escape(path.stem)}\.[0-9a-f]*\.npz', n)
  ]
  try:
    strategy = files.load(path)
    named = arrays[0] if arrays else None
    own = checks_lib.plain(files.document(strategy, named)) | {'made_by': manifest.made_by}
    stored = json_files.read(path)
    fits = named is None or named == files.arrays_name(path, (bundle.folder / named).read_bytes())
  except (ValueError, OSError) as error:
    return checks_lib.Check(name, (messages.one_line(error),)), None
  wrong = list(checks_lib.differences(stored, own, 'its parameters'))
  if len(arrays) > 1 or not fits:
    wrong.append(f'{file} has other arrays than those of its strategy')
  detail = f'{strategy.strategy.family}, its figures computed again'
  return checks_lib.Check(name, tuple(wrong), detail), strategy


def differences(name: str, file: files.StrategyFile, run: facts.RunFacts) -> dict[str, str]:
  """Returns a sentence, by a name, if the setting of a strategy file is not that of its run."""
  own = run.schema
  if (file.schema, file.objective, file.workload.name) == (own, 'max', 'prefix'):
    return {}
  others = [
    f'{number} is {getattr(file.schema, number)}, not {getattr(own, number)}'
    for number in ('min_sep', 'max_participations', 'num_rounds')
    if getattr(file.schema, number) != getattr(own, number)
  ]
  detail = f': {", ".join(others)}' if others else ''
  told = f'{name} has another schema, objective or workload than its run{detail}'
  return {f'min_sep of {name}': told}
