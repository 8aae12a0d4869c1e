"""Noise of each setting of a study: its strategy, and how much for its ε."""

import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.planning import candidate_sets
from fl_dpftrl.study.designs import Condition, Design, Mechanism, slug
from fl_dpftrl.support.files import durable, json_files

_STUDY_NAME, _STRATEGIES_NAME, _LOCK_NAME = 'study.json', 'strategies', 'noise.lock'
_BANDED = ('banded', 'banded_toeplitz')
# Of all runs of a folder.
_FIXED = (
  *('participation', 'clip_norm', 'report_goal', 'delta', 'deployment_report_goal'),
  *('workload', 'metric', 'flags'),
)
Say = Callable[[str], None]


class Noise(NamedTuple):
  """Noise of a setting: strategy file, std(Z) / clip norm, and ε of a run with it."""

  strategy: str
  noise_multiplier: float
  epsilon: float
  num_parts: int | None = None  # From which batches are drawn.


Noises = dict[Condition, Noise | None]


def prepare(design: Design, folder: pathlib.Path, say: Say) -> Noises:
  """Returns the noise of each setting; what the folder holds of it is kept."""
  for mechanism in design.mechanisms:
    candidate_sets.named(mechanism.mechanism)
  is_new = not folder.exists()
  if not is_new and not (folder / _STUDY_NAME).exists():
    names = {path.name for path in folder.iterdir()} - {_LOCK_NAME, _STRATEGIES_NAME}
    if not all(name.startswith(durable.TEMPORARY_PREFIX) for name in names):
      raise ValueError(f'{folder} holds other files; name a new folder')
  (folder / _STRATEGIES_NAME).mkdir(parents=True, exist_ok=True)
  say(f'noise of {len(design.settings)} settings')  # Another process may be at it.
  try:
    with durable.locked(folder / _LOCK_NAME, wait=True):
      return _prepared(design, folder, say)
  except ValueError:
    if is_new:
      shutil.rmtree(folder, ignore_errors=True)
    raise


def _prepared(design: Design, folder: pathlib.Path, say: Say) -> Noises:
  path, noises = folder / _STUDY_NAME, Noises()
  now = {name: str(getattr(design, name)) for name in _FIXED}
  now |= {f'mechanism {m.label}': m.identity for m in design.mechanisms}
  stored = json_files.read(path) if path.exists() else {'conditions': {}, 'noise': {}}
  if not isinstance(stored, dict) or stored.keys() != {'conditions', 'noise'}:
    raise ValueError(f'{path} is not of a study; name a new folder')
  differing = [n for n, text in now.items() if stored['conditions'].get(n, text) != text]
  if differing:
    raise ValueError(f'{folder} holds a study that differs in {", ".join(differing)}: name another')
  memo, head = stored['noise'], {'conditions': {**stored['conditions'], **now}}
  write = lambda: durable.write_durably(path, json.dumps({**head, 'noise': memo}).encode())
  write()  # Before any strategy, so that its file is that of the mechanism with this label.
  for setting in design.settings:
    mechanism, epsilon = setting
    if mechanism is None or epsilon is None:
      noises[setting] = None
      continue
    key = f'{mechanism.label} {epsilon!r}'
    try:
      noise = Noise(**memo[key]) if key in memo else _find(design, mechanism, epsilon, folder, say)
    except ValueError as problem:
      raise ValueError(f'{mechanism.label}: {problem}') from None
    memo[key] = noise._asdict()
    noises[setting] = noise._replace(strategy=str(folder / _STRATEGIES_NAME / noise.strategy))
  write()
  return noises


def _find(
  design: Design, mechanism: Mechanism, epsilon: float, folder: pathlib.Path, say: Say
) -> Noise:
  schema, delta = design.planned, design.delta
  scheme: Any = design.participation
  bands: tuple[int | None, ...] = (None,)
  if not scheme.gated and mechanism.mechanism in _BANDED:
    bands = scheme.candidate_bands()
  paths = [
    _strategy_file(design, mechanism, folder / _STRATEGIES_NAME, say, size) for size in bands
  ]
  strategies = [files.load_strategy(path) for path in paths]
  if design.is_drawn:
    chosen, amplified = accountant.choose(
      strategies, scheme, epsilon=epsilon, delta=delta, workload=design.workload
    )
    (name,) = (path.name for path, strategy in zip(paths, strategies) if strategy is chosen)
    parts = getattr(scheme.for_bands(chosen), 'num_parts', None)
    return Noise(name, amplified.noise_multiplier, amplified.epsilon(), parts)
  options: dict[str, Any] = {'delta': delta, 'num_coordinates': arithmetics.MANY_COORDINATES}
  guarantee = accountant.calibrate(strategies[0], schema, epsilon=epsilon, **options)
  if design.deployment_report_goal is not None:
    multiplier = guarantee.noise_multiplier * design.report_goal / design.deployment_report_goal
    guarantee = accountant.account(strategies[0], schema, noise_multiplier=multiplier, **options)
  return Noise(paths[0].name, guarantee.noise_multiplier, guarantee.epsilon())


def _strategy_file(
  design: Design, mechanism: Mechanism, folder: pathlib.Path, say: Say, bands: int | None
) -> pathlib.Path:
  """Returns the path of a mechanism's strategy for the workload, which is found if need be."""
  name, label, schema = mechanism.mechanism, slug(mechanism.label), design.planned
  path = folder / (f'{label}.json' if bands is None else f'{label}-{bands}bands.json')
  if not path.exists():
    (candidate,) = candidate_sets.named(name if bands is None else f'{name}:{bands}')
    if candidate.optimised:
      say(f'optimising {candidate.label} for {schema.num_rounds} rounds')
    goal: Any = {'objective': mechanism.objective, 'workload': design.workload}
    strategy = candidate.find(schema, **goal, progress=None)
    files.save_strategy(path, strategy, schema=schema, **goal)
  return path
