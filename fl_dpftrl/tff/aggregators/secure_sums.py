"""Sums of whole numbers by TFF, plain or secure; and their exact sum with a row of noise."""

import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.support.text import messages
from tff_inprocess import failures

SECURE = 'secure'
"""The name of TFF's modular secure sum, with the modulus that a round needs."""

Factory: TypeAlias = tff.aggregators.UnweightedAggregationFactory
_ModularSum: Any = tff.aggregators.SecureModularSumFactory
_FINEST_BITS = 46  # of a clip norm, in a run without noise
# Room for more updates than the report goal, in a modulus that is chosen here.
_MOST_REPORTS = 4
# Of sums with noise in units of the lattice, in int64 with room; and of a modulus.
_SUM_BITS, _MODULUS_BITS = 62, 61


class Sums(NamedTuple):
  """An inner process, and what its sums are exact for.

  Attributes:
    process: sums updates.
    unit: units of the updates.
    modulus: modulo which sums are, in units of the lattice; None for that of int64.
    most_updates: updates whose sum with a row of noise is not changed by the modulus.
    has_canaries: whether canaries come with the rows of noise, so that results are measured.
  """

  process: tff.templates.AggregationProcess
  unit: lattice_units.Unit
  modulus: int | None
  most_updates: int
  has_canaries: bool = False

  def released(self, totals: Any, row: Any, scale: Any) -> Any:
    """Returns what sums with a row of noise stand for: float32, scale times whole numbers.

    XLA makes one pass of it, with the same bits: no sum is there for a product to be fused with.
    """

    @functools.partial(tf.function, jit_compile=True, autograph=False)
    def release(totals, row, scale):
      noised = [self.noised(*parts) for parts in zip(totals, row, strict=True)]
      return [tf.cast(scale * tf.cast(part, tf.float64), tf.float32) for part in noised]

    scale = tf.convert_to_tensor(scale, tf.float64)
    flat = release(tf.nest.flatten(totals), tf.nest.flatten(row), scale)
    return tf.nest.pack_sequence_as(totals, flat)

  def noised(self, total: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns a sum with noise, in units of the lattice, in TensorFlow.

    They are added modulo the modulus, and only then lifted to a signed number. So the result is a
    function of the true sum with noise, whatever a device sent: nothing that others send changes
    how far one device's update can move it.
    """
    scale = tf.constant(1 << self.unit.shift, tf.uint64)
    wide = scale * tf.bitcast(total, tf.uint64) + tf.bitcast(noise, tf.uint64)
    lifted = tf.bitcast(wide, tf.int64)
    if self.modulus is None:
      return lifted
    half = self.modulus // 2
    return tf.math.floormod(lifted + half, self.modulus) - half

  def checked(self, totals: Any, num_updates: tf.Tensor) -> Any:
    """Returns sums unchanged; fails if they are of more updates than they have room for."""
    enough = tf.debugging.assert_less_equal(
      tf.cast(num_updates, tf.int64),
      tf.constant(self.most_updates, tf.int64),
      failures.told(
        f'a round has more than the {self.most_updates} updates that its sums have room for'
      ),
    )
    with tf.control_dependencies([enough]):
      return tf.nest.map_structure(tf.identity, totals)


def check(inner_factory: Factory | str) -> None:
  """Raises ValueError unless a factory is known to sum whole numbers exactly, and keeps nothing."""
  # By exact type: a class that inherits from it may do more.
  factories = (tff.aggregators.SumFactory, _ModularSum)
  if inner_factory != SECURE and type(inner_factory) not in factories:
    raise ValueError(
      f'inner_factory must be {SECURE!r}, a tff.aggregators.SumFactory or a'
      ' tff.aggregators.SecureModularSumFactory, whose sums of whole numbers are exact, got'
      f' {messages.kind(inner_factory)}'
    )


def bits_without_noise(inner_factory: Factory | str, report_goal: int) -> int:
  """Returns p of a run without noise, whose clip norm, perhaps huge for none, has 2^p units."""
  is_plain = type(inner_factory) is tff.aggregators.SumFactory
  return min(_FINEST_BITS, 60 - report_goal.bit_length()) if is_plain else lattice_units.MOST_BITS


def create(
  inner_factory: Factory | str,
  value_type: tff.Type,
  *,
  unit: lattice_units.Unit,
  report_goal: int,
  strategy: strategies.Strategy | None,
  num_canaries: int = 0,
) -> Sums:
  """Creates the process that sums updates, as whole numbers of 64 bits, with room for canaries."""
  longest = unit.longest
  noise = 0 if strategy is None else unit.farthest(strategy)
  beside = num_canaries * longest + noise
  least = 2 * (report_goal * longest + beside)
  if (least << unit.shift).bit_length() > _MODULUS_BITS:
    raise ValueError(
      f'report_goal={report_goal} updates and their noise have no room in sums of 64 bits: give a'
      ' larger noise_multiplier, or a smaller report_goal'
    )
  if inner_factory == SECURE:
    wanted = 2 * (_MOST_REPORTS * report_goal * longest + beside)
    bits = min(wanted.bit_length(), _MODULUS_BITS - unit.shift)
    inner_factory = _ModularSum(1 << bits)
  factory: Any = inner_factory
  if type(factory) is not _ModularSum:
    return Sums(factory.create(value_type), unit, None, unit.room(beside))
  # TFF names neither elsewhere, and takes only a modulus of the type of the values.
  limit, is_symmetric = int(factory._modulus), factory._symmetric_range
  modulus = 2 * limit - 1 if is_symmetric else limit
  if not least <= modulus < 1 << _SUM_BITS - unit.shift:
    raise ValueError(
      f'inner_factory has the modulus {modulus}, and the sum of report_goal={report_goal} updates'
      f' with noise needs at least {least}, and in int64 less than 2^{_SUM_BITS - unit.shift};'
      f' {SECURE!r} chooses one'
    )
  factory = _ModularSum(np.int64(limit), is_symmetric)
  room = (modulus // 2 - beside) // max(longest, 1)
  return Sums(factory.create(value_type), unit, modulus << unit.shift, room)
