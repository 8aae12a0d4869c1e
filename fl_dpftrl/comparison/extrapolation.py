"""Evaluation of every candidate at every hypothetical deployment."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fl_dpftrl.accounting import extrapolation
from fl_dpftrl.comparison import candidates as candidates_lib
from fl_dpftrl.comparison import sweep


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """Predicted guarantee of a candidate.

  Attributes:
    strategy: label of the candidate.
    report_goal: number of updates per round.
    noise_multiplier: std(Z) / clip norm, in proportion to the report goal.
    population: number of devices; None if min-sep was given without.
    num_rounds: n.
    min_sep: b.
    max_participations: min(k, ⌈n / b⌉).
    sensitivity: sensitivity per unit of clip norm.
    sensitivity_kind: 'exact' or 'upper_bound'.
    rho: ρ of zCDP.
    epsilon: ε at delta.
    delta: δ.
    adjacency: 'zero_out'.
  """

  strategy: str
  report_goal: int
  noise_multiplier: float
  population: int | None
  num_rounds: int
  min_sep: int
  max_participations: int
  sensitivity: float
  sensitivity_kind: str
  rho: float
  epsilon: float
  delta: float
  adjacency: str


FIELDS = tuple(field.name for field in dataclasses.fields(Row))


class Entry(NamedTuple):
  """Candidate at a deployment, with its row."""

  candidate: candidates_lib.Candidate
  row: Row


class Skipped(NamedTuple):
  """Candidate that does not support a deployment, with the reason."""

  candidate: candidates_lib.Candidate
  deployment: extrapolation.Deployment
  reason: str


def run(
  candidates: Sequence[candidates_lib.Candidate],
  references: Sequence[extrapolation.Reference],
  deployments: Sequence[extrapolation.Deployment],
  *,
  delta: float,
  objective: str,
  watch: sweep.Watch,
) -> Iterable[Entry | Skipped]:
  """Finds strategies and predicts guarantees, one candidate after the other.

  Args:
    candidates: candidates; their strategies are found for each deployment.
    references: one reference per candidate.
    deployments: hypothetical deployments, one row each per candidate.
    delta: δ.
    objective: 'rms' or 'max', for the candidates that are optimised.
    watch: progress callback; see `sweep`.
  """
  schemas = [deployment.schema for deployment in deployments]
  for candidate, reference in zip(candidates, references, strict=True):
    for deployment, searched in zip(
      deployments, sweep.search(candidate, schemas, objective=objective, watch=watch)
    ):
      yield _predict(candidate, reference, deployment, searched, delta)


def _predict(
  candidate: candidates_lib.Candidate,
  reference: extrapolation.Reference,
  deployment: extrapolation.Deployment,
  searched: sweep.Found,
  delta: float,
) -> Entry | Skipped:
  if searched.strategy is None:
    return Skipped(candidate, deployment, searched.reason)
  most = searched.strategy.max_rounds
  if most is not None and deployment.num_rounds > most:
    return Skipped(candidate, deployment, f'it was made for {most} rounds, and ends there')
  try:
    guarantee = extrapolation.predict(searched.strategy, deployment, reference, delta=delta)
  except sweep.UNSUPPORTED as e:
    return Skipped(candidate, deployment, sweep.one_line(e))
  schema = guarantee.schema
  return Entry(
    candidate,
    Row(
      strategy=candidate.label,
      report_goal=deployment.report_goal,
      noise_multiplier=guarantee.noise_multiplier,
      population=deployment.population,
      num_rounds=schema.num_rounds,
      min_sep=schema.min_sep,
      max_participations=schema.participations,
      sensitivity=guarantee.sensitivity,
      sensitivity_kind=guarantee.sensitivity_kind,
      rho=guarantee.rho,
      epsilon=guarantee.epsilon,
      delta=guarantee.delta,
      adjacency=guarantee.adjacency,
    ),
  )
