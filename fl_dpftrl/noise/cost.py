"""Prediction of the memory and time that noise rows take."""

from typing import NamedTuple

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import linear_noise
from fl_dpftrl.noise import recurrence

# Seconds a parameter on one core, measured on a server's processor: a normal
# drawn, a buffer that is read and written, and one that is read.
_DRAW, _WRITE, _READ = 14e-9, 1e-9, 0.6e-9
_BYTES = 8


class Cost(NamedTuple):
  """Memory and time that the noise rows of a strategy take.

  Attributes:
    memory_bytes: size of the buffers, in float64.
    seconds_per_round: average time in which one core makes a row.
  """

  memory_bytes: int
  seconds_per_round: float


def buffer_bytes(strategy: strategies.Strategy, num_rounds: int, num_parameters: int) -> int:
  """Returns the size of the buffers for num_rounds noise rows, in float64."""
  noise = strategy.noise(num_rounds)
  return recurrence.layout(noise, num_rounds)[0] * _BYTES * num_parameters


def predict(strategy: strategies.Strategy, num_rounds: int, num_parameters: int) -> Cost:
  """Predicts memory and time for num_rounds noise rows of num_parameters each.

  Times are good to a factor of about two. They lengthen a round only if its
  clients train for less time than a noise row takes.

  Raises:
    ValueError: if the strategy has fewer rows, or num_parameters is below 1.
  """
  if num_parameters < 1:
    raise ValueError(f'num_parameters must be at least 1, got {num_parameters!r}')
  strategies.check_num_rounds(strategy, num_rounds)
  noise = strategy.noise(num_rounds)
  draws = sum(len(noise.at(t).draws) for t in range(num_rounds)) / num_rounds
  copies, at_once = recurrence.layout(noise, num_rounds)
  at_once = at_once or 1
  if isinstance(noise.at(num_rounds - 1).update, linear_noise.Add):
    written = copies
  else:
    written = min(copies, (num_rounds - 1) % at_once + 1)
  each = draws * _DRAW + written / at_once * _WRITE + (copies - written) / at_once * _READ
  return Cost(copies * _BYTES * num_parameters, each * num_parameters)
