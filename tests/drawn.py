"""What several tests draw: schemas, sampling schemes and their batches, matrices."""

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.planning.simulation import partition
from tests.prove.replaying import in_memory

SCHEMAS = (dpftrl.MinSep, dpftrl.FixedSeparation)


@st.composite
def schemas(draw, cls=None, most_rounds=9):
  """A schema of a class, or of either; min-sep and k may be beyond the run."""
  num_rounds = draw(st.integers(1, most_rounds))
  return (cls or draw(st.sampled_from(SCHEMAS)))(
    num_rounds=num_rounds,
    min_sep=draw(st.integers(1, num_rounds + 1)),
    max_participations=draw(st.none() | st.integers(1, num_rounds + 1)),
  )


@st.composite
def schemes(draw):
  """A sampling scheme of any kind, with up to 5 parts of up to 30 examples."""
  parts = draw(st.integers(1, 5))
  part_size = draw(st.integers(1, 30))
  return draw(st.sampled_from(list(sampling.BATCHES.values())))(
    num_rounds=draw(st.integers(1, 60)),
    num_examples=parts * part_size + draw(st.integers(0, parts - 1)),
    batch_size=draw(st.integers(1, part_size)),
    num_parts=parts,
  )


def batches(scheme, seed=0, **options):
  """The examples, or devices, of each round of a run with a sampling scheme."""
  return [cohort.device_ids for cohort in partition.rounds(scheme, seed, **options)]


def columns(rounds):
  """Columns of a log: the rounds and the examples of batches."""
  sizes = [len(examples) for examples in rounds]
  return {
    'rounds': np.repeat(np.arange(len(rounds)), sizes),
    'device_ids': np.concatenate([np.asarray(examples, np.int64) for examples in rounds]),
  }


def log_of(rounds):
  """The log of a run with these batches."""
  table = columns(rounds)
  table = pa.table({'round': table['rounds'], 'device_id': table['device_ids']})
  return in_memory.log_of_table(table, len(rounds))


def matrices(rows, columns, low=0.0):
  """Matrices with entries from low to 2, to three decimals."""
  entries = st.floats(low, 2.0).map(lambda x: round(x, 3))
  return hnp.arrays(np.float64, (rows, columns), elements=entries)


@st.composite
def bands(draw, num_rounds, num_bands, low=0.0):
  """Coefficients of a banded strategy, with a diagonal of at least 0.1."""
  values = draw(matrices(num_rounds, num_bands, low))
  values[:, 0] = np.abs(values[:, 0]) + 0.1
  values[np.arange(num_rounds)[:, None] < np.arange(num_bands)] = 0.0
  return values


def triangle(size, seed, low):
  """A lower-triangular matrix with entries from low to 1 and a positive diagonal."""
  matrix = np.random.default_rng(seed).uniform(low, 1.0, (size, size))
  return np.tril(matrix, -1) + np.diag(0.1 + np.abs(np.diagonal(matrix)))
