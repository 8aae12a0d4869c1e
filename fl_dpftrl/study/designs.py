"""Design of a study: mechanisms × ε × seeds, under conditions that all runs share."""

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fl_dpftrl.mechanisms import base, workload_error, workloads
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.planning import candidate_sets
from fl_dpftrl.study.result_tables import Metric
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

NO_NOISE = 'no noise'
_MOST = 1000  # mechanisms, ε, rates or seeds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism:
  """A mechanism of a study.

  Attributes:
    mechanism: a mechanism, a mechanism with its size (blt:3 or banded:64), a name in matrices/ or a
      strategy file, also as label=file, or a strategy.
    label: name in tables and figures; '' for that of label=file, or the mechanism's own, which of a
      strategy is its family.
    objective: 'rms' or 'max', the loss that it is optimised for.
    server_learning_rates: rates to try; () for those of the study.

  Raises:
    ValueError: naming the field and its value.
  """

  mechanism: str | base.Strategy
  label: str = ''
  objective: str = 'max'
  server_learning_rates: tuple[float, ...] = ()

  def __post_init__(self):
    checks.instance(str, label=self.label)
    if not isinstance(self.mechanism, str | base.Strategy):
      got = messages.quoted(self.mechanism)
      raise ValueError(f'mechanism must be a name or a strategy, got {got}')
    workload_error.check_objective(self.objective)
    if isinstance(self.mechanism, str):
      label = self.label or candidate_sets.labelled(self.mechanism)[0] or self.mechanism
    else:
      label = self.label or self.mechanism.family
    object.__setattr__(self, 'label', messages.one_line(label, limit=30))
    if self.server_learning_rates != ():
      rates = _numbers('server_learning_rates', self.server_learning_rates)
      object.__setattr__(self, 'server_learning_rates', rates)

  @property
  def identity(self) -> str:
    """Name and objective, by which a folder tells mechanisms of one label apart."""
    name = self.mechanism
    if not isinstance(name, str):
      name = f'{name.family} {documents.strategy_digest(name)}'
    return f'{name}, {self.objective}'


Mechanisms: TypeAlias = (
  Sequence[str | base.Strategy | Mechanism] | Mapping[str, str | base.Strategy | Mechanism]
)
"""Mechanisms of a study, or labels of these."""


class Condition(NamedTuple):
  """A mechanism at one target ε; None and None without noise."""

  mechanism: Mechanism | None
  epsilon: float | None

  @property
  def label(self) -> str:
    """Name of the mechanism in tables and figures."""
    return NO_NOISE if self.mechanism is None else self.mechanism.label


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
  """Design of a study, whose fields are arguments of `study`."""

  title: str
  mechanisms: tuple[Mechanism, ...]
  epsilons: tuple[float, ...]
  server_learning_rates: tuple[float, ...]
  seeds: tuple[int, ...]
  participation: Participation
  clip_norm: float
  report_goal: int
  delta: float
  deployment_report_goal: int | None = None
  workload: workloads.Workload = workloads.Workload()
  without_noise: bool = True
  metric: Metric = Metric()
  flags: tuple[str, ...] = ()

  def __post_init__(self):
    for name, kind in (('title', str), ('without_noise', bool)):
      if not isinstance(value := getattr(self, name), kind):
        raise ValueError(f'{name} must be of type {kind.__name__}, got {messages.quoted(value)}')
    named = lambda m: m if isinstance(m, Mechanism) else Mechanism(mechanism=m)
    if isinstance(every := self.mechanisms, Mapping):
      every = [dataclasses.replace(named(m), label=label) for label, m in every.items()]
    values = {
      'title': messages.one_line(self.title),
      'mechanisms': tuple(map(named, _list('mechanisms', every))),
      'epsilons': _numbers('epsilons', self.epsilons),
      'server_learning_rates': _numbers('server_learning_rates', self.server_learning_rates),
      'seeds': _seeds(self.seeds),
    }
    for name, value in values.items():
      object.__setattr__(self, name, value)
    labels = [NO_NOISE, *(mechanism.label for mechanism in self.mechanisms)]
    for label in labels:
      if list(map(slug, labels)).count(slug(label)) > 1:
        raise ValueError(f'{messages.quoted(label)} is there twice; give another label')
    checks.positive(clip_norm=self.clip_norm)
    checks.whole(report_goal=self.report_goal)
    gaussian.check_delta(self.delta)
    goal = self.deployment_report_goal
    if goal is not None:
      if checks.whole(deployment_report_goal=goal) < self.report_goal:
        least = f'report_goal={self.report_goal}'
        raise ValueError(f'deployment_report_goal={goal} must be at least {least}')
    registry.check(self.participation)
    if self.participation.num_rounds is None:
      raise ValueError('participation must have num_rounds: the runs of a study end')
    if self.participation.is_drawn and not self.participation.is_secret:
      raise ValueError(
        'participation must amplify where it is drawn, as CyclicPoisson, CyclicFixedSize and'
        f' SecretBins do, got {messages.kind(self.participation)}; shuffled batches have a schema'
      )
    if self.participation.is_drawn and self.deployment_report_goal is not None:
      raise ValueError('deployment_report_goal means nothing where batches are drawn')

  @property
  def is_drawn(self) -> bool:
    """True where batches or bins are drawn in secret."""
    return self.participation.is_drawn

  @property
  def planned(self) -> Any:
    """The schema that strategies are made for; where batches are drawn, that of one turn."""
    schema = self.participation.gated
    return schema or separations.MinSep(self.participation.num_rounds, max_participations=1)

  @property
  def settings(self) -> tuple[Condition, ...]:
    """Mechanisms by ε, and training without noise at the end."""
    noisy = [Condition(m, epsilon) for epsilon in self.epsilons for m in self.mechanisms]
    return (*noisy, *([Condition(None, None)] if self.without_noise else []))

  def places(self) -> list[tuple[Condition, float | None, int]]:
    """Returns setting, rate and seed of each cell; rates that the first seed chooses are None."""
    first, *others = self.seeds
    rates = {s: s.mechanism and s.mechanism.server_learning_rates for s in self.settings}
    grids = {setting: own or self.server_learning_rates for setting, own in rates.items()}
    tried = [(setting, rate, first) for setting, grid in grids.items() for rate in grid]
    rest = [(s, g[0] if len(g) == 1 else None, seed) for seed in others for s, g in grids.items()]
    return tried + rest


def slug(label: str) -> str:
  """Returns a label as a file name."""
  return re.sub(r'[^A-Za-z0-9_.]+', '_', label).strip('._') or 'unnamed'


def _list(name: str, items: Any) -> list[Any]:
  """Returns a list of what can be one, NumPy's numbers as Python's."""
  if isinstance(items, Iterable) and not isinstance(items, (str, bytes, dict)):
    values = [value.item() if isinstance(value, np.generic) else value for value in items]
    if any(values.count(value) > 1 for value in values):
      raise ValueError(f'{name} must be distinct, got {messages.quoted(items)}')
    if 0 < len(values) <= _MOST:
      return values
  raise ValueError(f'{name} must be a list of 1 to {_MOST} entries, got {messages.quoted(items)}')


def _numbers(name: str, argument: Any) -> tuple[float, ...]:
  values = _list(name, argument)
  for value in values:
    if type(value) not in (int, float) or not 0.0 < value < math.inf:
      raise ValueError(f'{name} must be numbers above 0, got {messages.quoted(value)}')
  return tuple(sorted(map(float, values)))


def _seeds(argument: Any) -> tuple[int, ...]:
  values = _list('seeds', argument)
  for value in values:
    if type(value) is not int or not 0 <= value < 2**31:
      raise ValueError(f'seeds must be whole numbers from 0 on, got {messages.quoted(value)}')
  return tuple(values)
