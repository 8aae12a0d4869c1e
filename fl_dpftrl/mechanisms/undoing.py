"""The checks that a mechanism is one: N undoes C, and its figures are those of C and N.

A run releases A (x + N Z) = A N (C x + Z), which hides x as well as the sensitivity of C says.
With any other N, neither the sensitivity nor ε would be those of what is released.
"""

import contextlib
import itertools
import weakref

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, workload_error, workloads
from fl_dpftrl.mechanisms.sensitivities import kinds

# Rounds for which noise rows are compared with C: without buffers, and with.
_CHECKED_ROUNDS, _CHECKED_BUFFERED_ROUNDS = 1024, 128
_MOST_CHECKED_ROUNDS = 4096  # most rounds for which they are applied to a vector
_PACKAGE = __package__.partition('.')[0] + '.'
_SMALL, _CHEAP = 7, 2048  # rounds for which every pattern of participations is tried; one product
_ROUNDING, _UNDERFLOW = 1e-6, 1e-200
# (id, rounds) of the strategies that were checked and are still used.
_checked = weakref.WeakValueDictionary[tuple[int, int], base.Strategy]()


def check_mechanism(strategy: base.Strategy, num_rounds: int | None = None) -> None:
  """Raises ValueError unless C, N and the figures of a family of a user's own belong together.

  Each N C must be the identity, up to rounding, and the sensitivity must be finite and at least
  what a pattern of participations reaches: of all short runs, and of the longest that is cheap.
  Families of this package, of which the parameters give both C and N, are not checked again.

  Args:
    num_rounds: rounds that are asked for; None for all of the strategy's. Checked up to 2048.
  """
  if type(strategy).__module__.startswith(_PACKAGE):
    for part in strategy.parameters().values():
      if isinstance(part, base.Strategy):  # A stamped strategy repeats one.
        check_mechanism(part, num_rounds)
    return
  if not _inherits(strategy, 'endless_gram'):
    raise ValueError(
      f'endless_gram of {strategy.family} cannot be checked, and a run without an end takes only'
      f' {base.ENDLESS}: give the class endless_gram = dpftrl.Strategy.endless_gram'
    )
  most = strategy.max_rounds or num_rounds or _CHECKED_ROUNDS
  longest = min(num_rounds or most, most, _CHEAP)
  if _checked.get((id(strategy), longest)) is strategy:
    return
  for n in sorted({*range(1, min(_SMALL, longest) + 1), longest}):
    matrix = _checked_inverse(strategy, n)
    if n == min(_SMALL, longest):
      _check_gram(strategy, matrix)
      _check_sensitivity(strategy, matrix)
    elif n == longest and not _inherits(strategy, 'sensitivity', 'gram_matrix'):
      _check_sensitivity(strategy, matrix)
  if not strategy.depends_on_num_rounds:
    check_undoes(strategy, strategy.noise(longest), longest, _CHECKED_BUFFERED_ROUNDS)
  with contextlib.suppress(TypeError):  # Of a class with slots.
    _checked[id(strategy), longest] = strategy


def _inherits(strategy: base.Strategy, *names: str) -> bool:
  """Returns whether methods are those by default; an attribute of one object may hide them too."""
  methods = [getattr(getattr(strategy, name), '__func__', None) for name in names]
  return methods == [getattr(base.Strategy, name) for name in names]


def _checked_inverse(strategy: base.Strategy, num_rounds: int) -> np.ndarray:
  """Returns C; ValueError unless N C is the identity, with matrices of the right shapes."""
  family, width = strategy.family, strategy.num_noise_rows(num_rounds)
  matrix, noising = strategy.strategy_matrix(num_rounds), strategy.noising_matrix(num_rounds)
  for name, values, shape in (
    ('strategy_matrix', matrix, (width, num_rounds)),
    ('noising_matrix', noising, (num_rounds, width)),
  ):
    if np.shape(values) != shape or not np.isfinite(values).all():
      raise ValueError(
        f'{name} of {family} must be finite and have shape {list(shape)} for {num_rounds} rounds,'
        f' got shape {list(np.shape(values))}'
      )
  probes = np.eye(num_rounds)
  if num_rounds > _SMALL:  # A product with a random vector costs less than that of the matrices.
    probes = np.random.default_rng(0).normal(size=(num_rounds, 1))
  if not _map(noising, matrix @ probes, np.abs(matrix) @ np.abs(probes), probes):
    raise ValueError(
      f'noising_matrix of {family} does not undo its strategy_matrix in {num_rounds} rounds: N C'
      ' must be the identity, or no figure of C holds for the noise'
    )
  return matrix


def _check_gram(strategy: base.Strategy, matrix: np.ndarray) -> None:
  """Raises ValueError for entries of X, or errors, that are not those of the matrices."""
  family, num_rounds = strategy.family, matrix.shape[1]
  cells = np.ix_(*2 * [np.arange(num_rounds)])
  gram, entries = strategy.gram_matrix(num_rounds), strategy.gram_entries(num_rounds)(*cells)
  close = _ROUNDING * (np.abs(matrix).T @ np.abs(matrix)) + _UNDERFLOW
  if not all((np.abs(each - matrix.T @ matrix) <= close).all() for each in (gram, entries)):
    raise ValueError(f'gram_matrix or gram_entries of {family} is not that of its strategy_matrix')
  queries = workload_error.row_norms(strategy.noising_matrix(num_rounds), workloads.Workload())
  least = np.append(queries, workload_error.summary(queries)) * (1.0 - _ROUNDING)
  errors = np.append(
    strategy.per_query_error(num_rounds), workload_error.error(strategy, num_rounds)
  )
  if not (errors.shape == least.shape and (errors >= least).all()):
    raise ValueError(f'error or per_query_error of {family} is less than its noising_matrix gives')


def _check_sensitivity(strategy: base.Strategy, matrix: np.ndarray) -> None:
  """Raises ValueError for a sensitivity that is not finite, or that a pattern exceeds."""
  num_rounds = matrix.shape[1]
  rounds, middle = np.arange(num_rounds), -(-num_rounds // 2)
  patterns = [rounds[:1], rounds[-1:], rounds[::middle]]
  if num_rounds <= _SMALL:
    patterns = [np.flatnonzero(m) for m in itertools.product((0, 1), repeat=num_rounds) if any(m)]
  reached: dict[tuple[int, int], float] = {}
  for pattern in patterns:
    schema = int(np.diff(pattern).min(initial=num_rounds)), len(pattern)
    norm = float(np.linalg.norm(matrix[:, pattern].sum(axis=1)))
    reached[schema] = max(reached.get(schema, 0.0), norm)
  for (min_sep, count), norm in reached.items():
    schema = schemas.Schema(num_rounds, min_sep, count)
    result = kinds.sensitivity(strategy, schema)
    is_bound = result.kind != kinds.LOWER_BOUND
    if is_bound and not result.value >= norm * (1.0 - _ROUNDING):
      raise ValueError(
        f'sensitivity of {strategy.family} is {result.value:.6g} under {schema}, where a device'
        f' reaches {norm:.6g}'
      )


def check_undoes(
  strategy: base.Strategy,
  noise: linear_noise.LinearNoise,
  num_rounds: int | None,
  compared_rounds: int = _CHECKED_ROUNDS,
) -> None:
  """Raises ValueError unless the noise rows undo C, to rounding.

  The first rows are compared one by one, and with C of shorter runs: a run may end early. All rows
  of a run of up to 4096 rounds, and 1024 of a run without an end, are applied to C v for a random
  v, which they must give back: if N C were not the identity, that would happen with probability 0.
  """
  longest = min(num_rounds or _CHECKED_ROUNDS, _MOST_CHECKED_ROUNDS)
  checked = min(compared_rounds, _CHECKED_BUFFERED_ROUNDS if noise.num_buffers else _CHECKED_ROUNDS)
  checked = min(num_rounds or checked, checked)
  rows = _applied(strategy, noise, checked, np.eye(strategy.num_noise_rows(checked)))
  norms = np.fromiter(linear_noise.row_norms(noise), float, longest)
  if rows is None or not (_undo(rows, strategy, checked) and _give_back(strategy, noise, norms)):
    raise ValueError(
      f'noise of {strategy.family} does not undo its strategy_matrix, so it would'
      ' not be what its sensitivity is computed for'
    )
  ends = {1, 2, 3, 5, checked // 3, checked // 2, checked - 1} & set(range(1, checked))
  if not all(_undo(rows, strategy, n) for n in sorted(ends)):
    raise ValueError(
      f'strategy_matrix of {strategy.family} depends on the number of rounds: for a run that ends'
      ' early, it is not the matrix that the noise undoes; make the planned rounds a parameter,'
      ' and return the beginning of the matrix that is for all of them'
    )
  if not np.allclose(norms[:checked], np.linalg.norm(rows, axis=1), _ROUNDING, 0.0):
    raise ValueError(f'noise of {strategy.family} has rows of other norms than its steps say')


def _undo(rows: np.ndarray, strategy: base.Strategy, num_rounds: int) -> bool:
  """Returns whether the first rows of N undo C of so many rounds, and read no other rows of Z."""
  width, matrix = strategy.num_noise_rows(num_rounds), strategy.strategy_matrix(num_rounds)
  if matrix.shape != (width, num_rounds) or rows[:num_rounds, width:].any():
    return False
  return _map(rows[:num_rounds, :width], matrix, np.abs(matrix), np.eye(num_rounds))


def _map(matrix: np.ndarray, inputs: np.ndarray, sizes: np.ndarray, outputs: np.ndarray) -> bool:
  """Returns whether a matrix maps inputs of these sizes to outputs, up to rounding."""
  error = np.abs(matrix @ inputs - outputs)
  return bool((error <= _ROUNDING * (np.abs(matrix) @ sizes) + _UNDERFLOW).all())


def _applied(
  strategy: base.Strategy, noise: linear_noise.LinearNoise, num_rounds: int, inputs: np.ndarray
) -> np.ndarray | None:
  """Returns N inputs, row by row as the steps make them; None if they read beyond the inputs."""
  outputs = np.zeros((num_rounds, inputs.shape[1]))
  buffers = linear_noise.start(noise, inputs.shape[1])
  for t in range(num_rounds):
    step = noise.at(t)
    first = strategy.num_noise_rows(t) - step.earlier
    read = inputs[max(first, 0) : first + len(step.draws)]
    if len(read) < len(step.draws):
      return None
    drawn = np.asarray(step.draws) @ read
    row, buffers = linear_noise.advance(noise, step, drawn, read[0], buffers)
    outputs[t] = step.scale * row
  return outputs


def _give_back(strategy: base.Strategy, noise: linear_noise.LinearNoise, norms: np.ndarray) -> bool:
  """Returns whether noise rows of these norms give v back from C v, for a random v."""
  values, num_rounds = np.random.default_rng(0).normal(size=norms.size), norms.size
  matrix = strategy.strategy_matrix(num_rounds)
  if matrix.shape != (strategy.num_noise_rows(num_rounds), num_rounds):
    return False
  images = matrix @ values[:, None]
  returned = _applied(strategy, noise, num_rounds, images)
  close = _ROUNDING * (1.0 + norms * np.abs(images).max())
  return returned is not None and bool((np.abs(returned[:, 0] - values) <= close).all())
