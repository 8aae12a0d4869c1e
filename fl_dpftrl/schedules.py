"""Server learning-rate schedules over the rounds of a run."""

import numpy as np

_FRACTION_AT_ENDS = 0.05


def warmup_cooldown(
  server_learning_rate: float,
  num_rounds: int,
  *,
  warmup_fraction: float = 0.15,
  cooldown_fraction: float = 0.25,
) -> np.ndarray:
  """Returns learning rates with linear warm-up, plateau and linear cool-down.

  The rate grows from 5 % to 100 % of server_learning_rate over the first warmup_fraction of the
  rounds. It falls back to 5 % over the last cooldown_fraction.

  Args:
    server_learning_rate: rate of the plateau, above 0.
    num_rounds: n.
    warmup_fraction: fraction of the rounds, from 0 to 1.
    cooldown_fraction: fraction of the rounds, from 0 to 1.

  Returns:
    The rate of each round, float32 of shape [num_rounds].

  Raises:
    ValueError: if the rate is not positive, num_rounds is below 1, or the fractions are
      negative or together above 1.

  Source: Choquette-Choo et al. 2023 (BandMF), experiments; McMahan et al. 2024.
  """
  if not (np.isfinite(server_learning_rate) and server_learning_rate > 0):
    raise ValueError(f'server_learning_rate must be positive, got {server_learning_rate!r}')
  factors = warmup_cooldown_factors(
    num_rounds, warmup_fraction=warmup_fraction, cooldown_fraction=cooldown_fraction
  )
  return (server_learning_rate * factors).astype(np.float32)


def warmup_cooldown_factors(
  num_rounds: int, *, warmup_fraction: float, cooldown_fraction: float
) -> np.ndarray:
  """Returns the rates of `warmup_cooldown` relative to the plateau.

  Returns:
    Float64 of shape [num_rounds], between 0.05 and 1.

  Raises:
    ValueError: as for `warmup_cooldown`.
  """
  if num_rounds < 1:
    raise ValueError(f'num_rounds must be at least 1, got {num_rounds!r}')
  for name, fraction in (
    ('warmup_fraction', warmup_fraction),
    ('cooldown_fraction', cooldown_fraction),
  ):
    if not 0.0 <= fraction <= 1.0:
      raise ValueError(f'{name} must lie between 0 and 1, got {fraction!r}')
  if warmup_fraction + cooldown_fraction > 1.0:
    raise ValueError(
      'warmup_fraction and cooldown_fraction must sum to at most 1, got'
      f' {warmup_fraction!r} + {cooldown_fraction!r}'
    )
  factors = np.ones(num_rounds)
  for fraction, ends in ((warmup_fraction, 'first'), (cooldown_fraction, 'last')):
    length = round(fraction * num_rounds)
    ramp = np.linspace(_FRACTION_AT_ENDS, 1.0, length, endpoint=False)
    if ends == 'first':
      factors[:length] = ramp
    else:
      factors[num_rounds - length :] = ramp[::-1]
  return factors
