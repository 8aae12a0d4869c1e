"""Facts that the log of a run proves, and whether it kept to what its noise was calibrated for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fl_dpftrl.centralized import sampling
from fl_dpftrl.logs import writer
from fl_dpftrl.replaying import replay, runs
from fl_dpftrl.strategies import files
from fl_dpftrl.studies import cells as cells_lib

_ROUNDING = 1e-9  # of a noise multiplier


def proved(cell: cells_lib.Cell) -> dict[str, Any]:
  """Returns what the log of `private_aggregator` proves of a run; nothing without an aggregator.

  Raises:
    ValueError: if the aggregator is still open, or never had a round.
  """
  folder = cell.folder / cells_lib.ROUNDS_NAME
  strategy, log = folder / files.NAME, folder / writer.NAME
  if not strategy.exists():
    return {}
  if not log.exists():
    raise ValueError(
      f'{log} is missing: train must use the aggregator, and close it, as a `with` block does'
    )
  run = runs.open_run(log, strategy)
  if cell.sampling is not None:
    scheme = dataclasses.replace(cell.sampling, num_rounds=run.log.num_rounds)
    run = dataclasses.replace(run, sampling=scheme)
  stated = replay.replay(run, deltas=cell.conditions.delta)
  loss = stated.worst_case if cell.sampling is None else stated.parts()[-1].loss
  facts = {
    'noise_multiplier': stated.noise_multiplier,
    'epsilon': None if cell.noise is None else loss.epsilon,
    'delta': cell.conditions.delta,
    'num_rounds': stated.num_rounds,
  }
  if cell.sampling is None:
    facts |= {'min_sep': stated.min_sep, 'max_participations': stated.max_participations}
  return facts


def broken(cell: cells_lib.Cell, summary: Mapping[str, Any]) -> str:
  """Returns how a run did not keep to its conditions; '' if it did, or does not say."""
  if cell.noise is None:
    return ''
  schema, delta = cell.conditions.schema, cell.conditions.delta
  if 'epsilon' in summary and summary['epsilon'] is None:
    return 'nothing proves an ε of it'
  if summary.get('delta', delta) != delta:
    return f'its ε is that of delta={summary["delta"]:g}, and the study has delta={delta:g}'
  bounds: tuple[tuple[str, float, bool], ...] = (
    ('max_participations', schema.participations, True),
    ('min_sep', min(schema.min_sep, summary.get('num_rounds', schema.num_rounds)), False),
  )
  scheme = cell.sampling
  if scheme is not None:
    name = sampling.name(scheme)
    if summary.get('sampling', name) != name:
      return f'its batches are drawn by {summary["sampling"]}, and its noise is for {name}'
    bounds = (
      ('batch_size', scheme.batch_size, True),
      ('num_examples', scheme.num_examples, False),
      ('num_parts', scheme.num_parts, True),
      ('num_parts', scheme.num_parts, False),
    )
  for name, bound, is_most in (
    ('num_rounds', schema.num_rounds, True),
    *bounds,
    ('noise_multiplier', cell.noise_multiplier * (1.0 - _ROUNDING), False),
  ):
    value = summary.get(name, bound)
    if value > bound if is_most else value < bound:
      return (
        f'it has {name}={value:.6g}, and its noise is calibrated for at'
        f' {"most" if is_most else "least"} {bound:.6g}'
      )
  return ''
