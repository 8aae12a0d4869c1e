"""Evaluation of every candidate at every hypothetical deployment."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fl_dpftrl.accounting import extrapolation, gaussian
from fl_dpftrl.comparison import candidates as candidates_lib
from fl_dpftrl.comparison import sweep
from fl_dpftrl.files import json_files


class Entry(NamedTuple):
  """Candidate at a deployment, with its predicted guarantee."""

  candidate: candidates_lib.Candidate
  deployment: extrapolation.Deployment
  guarantee: gaussian.Guarantee

  def to_json(self) -> json_files.Object:
    """Returns the label of the candidate, the deployment and the guarantee as fields."""
    guarantee, schema = self.guarantee, self.guarantee.schema
    return {
      'strategy': self.candidate.label,
      'report_goal': self.deployment.report_goal,
      'noise_multiplier': guarantee.noise_multiplier,
      'population': self.deployment.population,
      'num_rounds': schema.num_rounds,
      'min_sep': schema.min_sep,
      'max_participations': schema.participations,
      'sensitivity': guarantee.sensitivity,
      'sensitivity_kind': guarantee.sensitivity_kind,
      'rho': guarantee.rho,
      'epsilon': guarantee.epsilon,
      'delta': guarantee.delta,
      'adjacency': guarantee.adjacency,
    }


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
  searched: sweep.Searched,
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
  return Entry(candidate, deployment, guarantee)
