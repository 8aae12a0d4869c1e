"""Strategies of a study whose batches are drawn: as many bands as have the least noise at an ε."""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from fl_dpftrl import workloads
from fl_dpftrl.centralized import amplification
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.families import base
from fl_dpftrl.strategies import files
from fl_dpftrl.studies import design as design_lib

_BANDED = ('banded', 'banded_toeplitz')


def sized(
  mechanism: design_lib.Mechanism, scheme: sampling_lib.Sampled
) -> Iterator[design_lib.Mechanism]:
  """Yields a mechanism with each number of bands to compare; itself if it has its size."""
  name = mechanism.mechanism
  if name not in _BANDED:
    yield mechanism
    return
  for bands in amplification.candidate_bands(
    num_rounds=scheme.num_rounds, num_examples=scheme.num_examples, batch_size=scheme.batch_size
  ):
    yield dataclasses.replace(
      mechanism, mechanism=f'{name}:{bands}', label=f'{mechanism.label}-{bands}bands'
    )


def choose(
  paths: Sequence[pathlib.Path],
  scheme: sampling_lib.Sampled,
  *,
  epsilon: float,
  delta: float,
  workload: workloads.Workload,
) -> tuple[pathlib.Path, base.Strategy, amplification.AmplifiedGuarantee]:
  """Returns the strategy file with the least noise, its strategy and guarantee.

  For arguments and errors see `amplification.choose`.
  """
  loaded = [files.load_strategy(path) for path in paths]
  strategy, guarantee = amplification.choose(
    loaded, scheme, epsilon=epsilon, delta=delta, workload=workload
  )
  (path,) = (path for path, each in zip(paths, loaded) if each is strategy)
  return path, strategy, guarantee
