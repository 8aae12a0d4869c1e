"""Designs of studies: what is compared, with which learning rates and seeds.

A study file holds one as a JSON object:

  title: one line.
  flags: texts that every run is told; for the training script, flags as on its command line.
  mechanisms: names, or objects with the fields of `Mechanism`.
  epsilons: target ε, for each of which the noise is calibrated.
  epsilon_of: 'run' (the run itself) or 'deployment' (a hypothetical, larger one).
  server_learning_rates, seeds: lists.
  tuning_seeds: number of seeds that choose the learning rate (default 1).
  metric, lower_is_better: see `Metric` (default accuracy).
  extend_rates: most further rates of a setting whose best rate is at an end of
    several (default 3); the grid goes on with the ratio of its last two.
  without_noise: true to add runs without noise (default true).

Instead of mechanisms, epsilons and server_learning_rates it may have `cells`: a
list of objects with the fields of `Mechanism` and those of `Setting`.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from fl_dpftrl import error
from fl_dpftrl.files import json_files
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.text import messages

RUN, DEPLOYMENT = 'run', 'deployment'
NO_NOISE = 'no noise'
_MOST = 1000  # settings, rates or seeds of a study


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
  """A mechanism of a study.

  Attributes:
    mechanism: a mechanism, a mechanism with its size (blt:3 or banded:64), a
      name in matrices/ or a strategy file.
    label: name in tables and figures; None for the mechanism's own.
    objective: 'rms' or 'max', the loss that it is optimised for.
    made_for_min_sep: min-sep that it is optimised for; None for that of the run.

  Raises:
    ValueError: naming the field and its value.
  """

  mechanism: str
  label: str = ''
  objective: str = 'max'
  made_for_min_sep: int | None = None

  def __post_init__(self):
    for name in ('mechanism', 'label', 'objective'):
      if not isinstance(getattr(self, name), str):
        raise ValueError(f'{name} must be text, got {messages.quoted(getattr(self, name))}')
    if not self.mechanism:
      raise ValueError('mechanism must be the name of one, got none')
    error.check_objective(self.objective)
    if self.made_for_min_sep is not None:
      _whole_number('made_for_min_sep', self.made_for_min_sep, 1)
    if not self.label:
      suffix = f' for b={self.made_for_min_sep}' if self.made_for_min_sep else ''
      object.__setattr__(self, 'label', self.mechanism + suffix)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """A mechanism at one level of noise, with the learning rates to try.

  Attributes:
    mechanism: the mechanism; None for no noise.
    epsilon: target ε; None for no noise.
    effective_noise_multiplier: noise multiplier over sensitivity, given instead
      of calibrated; for the deployment where epsilon_of says so.
    noise_multiplier: the same for the strategy as stored, not divided.
    server_learning_rates: rates, ascending.
    flags: further flags of its runs, as in a `Design`.
    published: value on test data that a paper reports; an accuracy from 0 to 1.

  Raises:
    ValueError: naming the field and its value.
  """

  mechanism: Mechanism | None
  epsilon: float | None
  server_learning_rates: tuple[float, ...]
  effective_noise_multiplier: float | None = None
  noise_multiplier: float | None = None
  flags: tuple[str, ...] = ()
  published: float | None = None

  def __post_init__(self):
    if (self.mechanism is None) != (self.epsilon is None):
      raise ValueError('mechanism and epsilon must be given together')
    if self.effective_noise_multiplier is not None and self.noise_multiplier is not None:
      raise ValueError('give effective_noise_multiplier or noise_multiplier, and not both')
    for name in ('epsilon', 'effective_noise_multiplier', 'noise_multiplier', 'published'):
      value, least = getattr(self, name), -math.inf if name == 'published' else 0.0
      if value is not None:
        object.__setattr__(self, name, _number(name, value, least))
    rates = _numbers('server_learning_rates', self.server_learning_rates)
    object.__setattr__(self, 'server_learning_rates', rates)
    object.__setattr__(self, 'flags', _flags(self.flags))

  @property
  def label(self) -> str:
    return NO_NOISE if self.mechanism is None else self.mechanism.label


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
  """Design of a study: settings, each trained with every seed.

  Attributes:
    title: one line.
    flags: texts that every run is told, such as flags of a training script.
    settings: what is compared.
    epsilon_of: 'run' or 'deployment', to which target ε refer.
    seeds: seeds of data, cohorts and initial weights.
    tuning_seeds: number of first seeds that choose the learning rate.
    extend_rates: most rates beyond a grid whose best rate is at an end.
    metric: what is compared.

  Raises:
    ValueError: naming the field and its value.
  """

  title: str
  flags: tuple[str, ...]
  settings: tuple[Setting, ...]
  epsilon_of: str = RUN
  seeds: tuple[int, ...] = (0,)
  tuning_seeds: int = 1
  extend_rates: int = 3
  metric: metric_lib.Metric = metric_lib.Metric()

  def __post_init__(self):
    if not (isinstance(self.title, str) and self.title):
      raise ValueError(f'title must be text, got {messages.quoted(self.title)}')
    object.__setattr__(self, 'title', messages.one_line(self.title))
    object.__setattr__(self, 'flags', _flags(self.flags))
    if self.epsilon_of not in (RUN, DEPLOYMENT):
      raise ValueError(
        f'epsilon_of must be {RUN!r} or {DEPLOYMENT!r}, got {messages.quoted(self.epsilon_of)}'
      )
    for seed in _list('seeds', self.seeds):
      _whole_number('seeds', seed, 0)
    if len(set(self.seeds)) < len(self.seeds):
      raise ValueError(f'seeds must be distinct, got {messages.quoted(self.seeds)}')
    object.__setattr__(self, 'seeds', tuple(self.seeds))
    _whole_number('tuning_seeds', self.tuning_seeds, 1)
    if self.tuning_seeds > len(self.seeds):
      raise ValueError(
        f'tuning_seeds={self.tuning_seeds} must be at most the {len(self.seeds)} seeds'
      )
    _whole_number('extend_rates', self.extend_rates, 0)
    if self.extend_rates > _MOST:
      raise ValueError(f'extend_rates={self.extend_rates} must be at most {_MOST}')
    if not 0 < len(self.settings) <= _MOST:
      raise ValueError(f'a study must have 1 to {_MOST} settings, got {len(self.settings)}')
    keys = [(setting.label, setting.epsilon) for setting in self.settings]
    for label, epsilon in keys:
      if keys.count((label, epsilon)) > 1:
        raise ValueError(
          f'{messages.quoted(label)} is there twice for epsilon {epsilon}; give one another label'
        )
    for setting in self.settings if self.metric.is_accuracy else ():
      if setting.published is not None and not 0.0 <= setting.published <= 1.0:
        raise ValueError(f'published={setting.published:g} must be an accuracy from 0 to 1')

  @property
  def num_cells(self) -> int:
    """Number of runs, without rates beyond a grid."""
    tuned = sum(len(setting.server_learning_rates) for setting in self.settings)
    others = len(self.settings) * (len(self.seeds) - self.tuning_seeds)
    return tuned * self.tuning_seeds + others

  @property
  def num_further(self) -> int:
    """Largest number of runs that grids may be extended by."""
    grids = sum(len(setting.server_learning_rates) > 1 for setting in self.settings)
    return grids * self.extend_rates * self.tuning_seeds


def read(path: str | os.PathLike[str]) -> Design:
  """Reads a study file.

  Raises:
    OSError: if it cannot be read.
    ValueError: naming the file, the field and its value.
  """
  content = json_files.read(path)
  try:
    return parse(content)
  except ValueError as problem:
    raise ValueError(f'{os.fspath(path)}: {problem}') from None


def parse(content: Any) -> Design:
  """Returns the design that a JSON value describes.

  Raises:
    ValueError: naming the field and its value.
  """
  study = _object('a study file', content)
  own = ('title', 'flags', 'epsilon_of', 'seeds', 'tuning_seeds', 'extend_rates')
  common = (*own, 'metric', 'lower_is_better', 'without_noise')
  grid = ('mechanisms', 'epsilons', 'server_learning_rates')
  listed = 'cells' in study
  _known('a study', study, (*common, 'server_learning_rates', 'cells') if listed else common + grid)
  for name in ('title', 'flags', 'seeds', *(('cells',) if listed else grid)):
    if name not in study:
      raise ValueError(f'{name} is missing')
  without_noise = study.get('without_noise', not listed)
  if not isinstance(without_noise, bool):
    raise ValueError(f'without_noise must be true or false, got {messages.quoted(without_noise)}')
  if listed:
    settings = [_cell(cell) for cell in _list('cells', study['cells'])]
  else:
    mechanisms = [_mechanism(entry) for entry in _list('mechanisms', study['mechanisms'])]
    settings = [
      Setting(mechanism=m, epsilon=e, server_learning_rates=study['server_learning_rates'])
      for e in _numbers('epsilons', study['epsilons'])
      for m in mechanisms
    ]
  if without_noise:
    if 'server_learning_rates' not in study:
      raise ValueError('server_learning_rates is missing, for the runs without noise')
    settings.append(
      Setting(mechanism=None, epsilon=None, server_learning_rates=study['server_learning_rates'])
    )
  fields = {name: study[name] for name in own if name in study}
  metric = metric_lib.Metric.of(study.get('metric', 'accuracy'), study.get('lower_is_better'))
  return Design(**fields, metric=metric, settings=tuple(settings))


def _mechanism(entry: Any) -> Mechanism:
  if isinstance(entry, Mechanism):
    return entry
  if isinstance(entry, str):
    return Mechanism(mechanism=entry)
  names = [field.name for field in dataclasses.fields(Mechanism)]
  if not isinstance(entry, dict):
    raise ValueError(
      f'mechanisms must be names, Mechanisms or objects with the fields of one, got'
      f' {messages.quoted(entry)}'
    )
  entry = _known('a mechanism', entry, names)
  if 'mechanism' not in entry:
    raise ValueError('a mechanism must have the field mechanism')
  return Mechanism(**entry)


def _cell(entry: Any) -> Setting:
  of_mechanism = [field.name for field in dataclasses.fields(Mechanism)]
  own = [field.name for field in dataclasses.fields(Setting) if field.name != 'mechanism']
  entry = _known('a cell', _object('a cell', entry), [*of_mechanism, *own])
  for name in ('mechanism', 'epsilon', 'server_learning_rates'):
    if name not in entry:
      raise ValueError(f'a cell must have the field {name}')
  mechanism = Mechanism(**{name: entry[name] for name in of_mechanism if name in entry})
  return Setting(mechanism=mechanism, **{name: entry[name] for name in own if name in entry})


def _object(what: str, value: Any) -> Mapping[str, Any]:
  if not isinstance(value, dict):
    raise ValueError(f'{what} must be a JSON object, got {messages.quoted(value)}')
  return value


def _known(what: str, value: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
  for name in value:
    if name not in names:
      raise ValueError(f'{what} has no field {messages.quoted(name)}; it has {", ".join(names)}')
  return value


def _list(name: str, value: Any) -> Sequence[Any]:
  if not isinstance(value, (list, tuple)) or not 0 < len(value) <= _MOST:
    raise ValueError(f'{name} must be a list of 1 to {_MOST} entries, got {messages.quoted(value)}')
  return value


def _flags(value: Any) -> tuple[str, ...]:
  if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
    raise ValueError(f'flags must be a list of texts, got {messages.quoted(value)}')
  return tuple(value)


def _numbers(name: str, value: Any) -> tuple[float, ...]:
  numbers = [_number(name, number, 0.0) for number in _list(name, value)]
  if len(set(numbers)) < len(numbers):
    raise ValueError(f'{name} must be distinct, got {messages.quoted(value)}')
  return tuple(sorted(numbers))


def _number(name: str, value: Any, least: float = -math.inf) -> float:
  number = isinstance(value, (int, float)) and not isinstance(value, bool)
  if not number or not (value > least and math.isfinite(value)):
    above = '' if least == -math.inf else f' above {least:g}'
    raise ValueError(f'{name} must be a number{above}, got {messages.quoted(value)}')
  return float(value)


def _whole_number(name: str, value: Any, least: int) -> None:
  if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
    raise ValueError(f'{name} must be a whole number from {least} on, got {messages.quoted(value)}')
