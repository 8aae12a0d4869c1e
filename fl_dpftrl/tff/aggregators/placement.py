"""Choice of the place where noise is kept: TFF's state, or an engine outside it."""

import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.noise import recurrence
from fl_dpftrl.support import machine

AUTO, STATE, ENGINE = 'auto', 'state', 'engine'
CHOICES = (AUTO, STATE, ENGINE)
# A state travels to TFF's worker as one message, below protobuf's and gRPC's 2 GB; a
# larger one kills the worker without a word.
MAX_STATE_BYTES = 1_900_000_000
# Vectors beside the noise. In a message: the model, its server momentum, and as much
# again for the rest of the state. In process, clients and their sum as well.
_MESSAGE_VECTORS, _ROUND_VECTORS = 4, 28
# In process: the noise state before a round, the one after it, and one on the way.
_STATE_COPIES = 4
# Of the free memory, for an engine's buffers; larger ones are in a mapped file.
_ENGINE_SHARE = 0.5


def num_rounds(strategy: strategies.Strategy) -> int:
  """Returns the rounds that a strategy's noise is made for at most."""
  return strategy.max_rounds or schemas.LAST_ROW


def choose(strategy: strategies.Strategy, model_bytes: int, asked: str = AUTO) -> str:
  """Returns STATE or ENGINE: as asked, or an engine where computations run in this process.

  In process, state must fit into the free memory. In TFF's worker, it must fit into a
  message; there is no engine, which a worker says when it is given a round with one.
  """
  in_process = is_in_process()
  if asked == ENGINE or (asked == AUTO and in_process):
    return ENGINE
  vectors = 2 * strategy.memory_copies(num_rounds(strategy))  # float64, of a float32 model
  model = f'{model_bytes / 1e6:,.1f} MB of a model'
  keeps = f'strategy {strategy.family} keeps {vectors} times the {model}'
  if not in_process:
    if (vectors + _MESSAGE_VECTORS) * model_bytes > MAX_STATE_BYTES:
      raise ValueError(
        f"{keeps} as noise state, and TFF's worker carries {MAX_STATE_BYTES / 1e9} GB,"
        f' {_MESSAGE_VECTORS} for the model included: call tff_inprocess.use() before, or choose'
        + _what_fits(MAX_STATE_BYTES, model_bytes, vectors, 1, _MESSAGE_VECTORS)
      )
    return STATE
  free = machine.free_memory()
  needed = (_STATE_COPIES * vectors + _ROUND_VECTORS) * model_bytes
  if free is None or needed <= free:
    return STATE
  raise ValueError(
    f'{keeps} as noise state: with the model, rounds need {needed / 1e9:,.1f} GB, and'
    f" {free / 1e9:,.1f} GB are free: give memory='engine', or choose"
    + _what_fits(free, model_bytes, vectors, _STATE_COPIES, _ROUND_VECTORS)
  )


def fits_memory(strategy: strategies.Strategy, size: int) -> bool:
  """Returns whether an engine's buffers fit into memory, so that it needs no mapped file."""
  free = machine.free_memory()
  if free is None:
    return True
  return recurrence.buffer_bytes(strategy, num_rounds(strategy), size) <= _ENGINE_SHARE * free


def is_in_process() -> bool:
  """Returns whether TFF computations run in this process now."""
  context = tff.framework.get_context_stack().current
  if isinstance(context, tff.program.NativeFederatedContext):
    context = context._context  # TFF names it nowhere else.
  return isinstance(context, (tff_inprocess.InProcessContext, tff_inprocess.AsyncInProcessContext))


def _what_fits(limit: int, model_bytes: int, vectors: int, copies: int, others: int) -> str:
  """Says which models and strategies fit into limit bytes, with `others` vectors more."""
  line = f' a model of at most {limit // (copies * vectors + others) // 4:,} parameters'
  fitting = (limit // model_bytes - others) // copies
  return line if fitting < 0 else f'{line} or a strategy of at most {fitting // 2} buffers'
