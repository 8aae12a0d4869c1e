"""Limits on the noise state that TensorFlow Federated can carry."""

from fl_dpftrl.families import base as strategies

# A state travels as one message, below protobuf's and gRPC's 2 GB; a larger one
# kills TFF's worker without a word.
MAX_STATE_BYTES = 1_900_000_000
# The model, its server momentum, and as much again for the rest of the state.
_MODEL_COPIES = 4
# Rounds for which a strategy without an end is provided.
_ENDLESS_ROUNDS = 2**20


def noise_state_bytes(strategy: strategies.Strategy, model_bytes: int) -> int:
  """Returns the bytes of a strategy's noise state for a model of model_bytes.

  If the state grows, the result is for the last round, or for round 2²⁰ of a
  strategy that can run for ever.
  """
  return model_bytes * strategy.memory_copies(strategy.max_rounds or _ENDLESS_ROUNDS)


def check_state_size(strategy: strategies.Strategy, model_bytes: int) -> None:
  """Rejects noise states that TFF cannot carry.

  Args:
    strategy: strategy whose stream is to be part of TFF's state.
    model_bytes: size of one update, in float32.

  Raises:
    ValueError: saying what would fit.
  """
  noise_bytes = noise_state_bytes(strategy, model_bytes)
  if noise_bytes + _MODEL_COPIES * model_bytes <= MAX_STATE_BYTES:
    return
  vectors = noise_bytes // model_bytes
  parameters = MAX_STATE_BYTES // (vectors + _MODEL_COPIES) // 4
  fitting = MAX_STATE_BYTES // model_bytes - _MODEL_COPIES
  advice = f'a model of at most {parameters:,} parameters would fit'
  if fitting >= 0:
    advice += (
      f', or a strategy that keeps at most {fitting} vectors (identity keeps'
      ' none, blt one a buffer, banded one less than bands)'
    )
  raise ValueError(
    f'strategy {strategy.family} keeps {vectors} vectors of'
    f' {model_bytes / 1e6:,.1f} MB as noise state, and TensorFlow Federated'
    f' carries {MAX_STATE_BYTES / 1e9} GB of state, {_MODEL_COPIES} vectors'
    f' for the model included: {advice}'
  )
