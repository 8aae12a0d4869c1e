"""Strategy files of a study: one of each mechanism; where batches are drawn, of several sizes."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence

from fl_dpftrl import workloads
from fl_dpftrl.centralized import amplification
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.comparison import candidates
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas
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


def strategy_file(
  mechanism: design_lib.Mechanism,
  schema: schemas.MinSep,
  folder: pathlib.Path,
  say: Callable[[str], None] | None,
) -> pathlib.Path:
  """Returns the path of a mechanism's strategy, which is found if need be.

  Raises:
    ValueError: if `say` is None, and the folder does not have it.
  """
  if mechanism.made_for_min_sep is not None:
    min_sep = min(mechanism.made_for_min_sep, schema.num_rounds)
    schema = schemas.MinSep(num_rounds=schema.num_rounds, min_sep=min_sep)
  most = '' if schema.max_participations is None else f'-k{schema.max_participations}'
  path = folder / f'{slug(mechanism.label)}-n{schema.num_rounds}-b{schema.min_sep}{most}.json'
  if not path.exists():
    if say is None:
      raise ValueError(f'{path} is missing; run the study first')
    (candidate,) = candidates.named([mechanism.mechanism])
    if candidate.optimised:
      say(f'optimising {mechanism.label} for n={schema.num_rounds}, b={schema.min_sep}')
    strategy = candidate.find(
      schema, objective=mechanism.objective, workload=workloads.Workload(), progress=None
    )
    files.save_strategy(path, strategy, schema=schema, objective=mechanism.objective)
  return path


def slug(label: str) -> str:
  """Returns a label as a file name."""
  return re.sub(r'[^A-Za-z0-9_.]+', '_', label).strip('._') or 'unnamed'
