"""The aggregator: bounds updates, sums them, adds correlated noise."""

import collections
import dataclasses
import math
import numbers
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl import digests
from fl_dpftrl.aggregators import by_engine, by_reference, clipping, inner_sum, placement
from fl_dpftrl.aggregators import parameters as parameters_lib
from fl_dpftrl.families import base as strategies
from fl_dpftrl.logs import noise_record
from fl_dpftrl.noise import base as noise_base
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.noise.engine import server as servers


class AggregatorState(NamedTuple):
  """State of the aggregator. Secret: it determines all noise to come.

  Attributes:
    inner: state of the inner factory's process.
    noise: a `StreamState`, with the `Parameters` of the factory.
  """

  inner: Any
  noise: Any


def _template(value_type: tff.Type) -> Any:
  if not tff.types.is_structure_of_tensors(value_type):
    raise ValueError(f'value_type must be made of tensors, got {value_type}')
  return tff.types.type_to_tf_tensor_specs(value_type)


def _is_whole(value: Any) -> bool:
  return isinstance(value, numbers.Integral)


# attribute: (what it must be, whether a finite number is that, its type)
_NUMBERS = {
  'noise_multiplier': ('finite and at least 0', lambda v: v >= 0, float),
  'clip_norm': ('finite and positive', lambda v: v > 0, float),
  'report_goal': ('a whole number of at least 1', lambda v: _is_whole(v) and v >= 1, int),
  'zeroing_norm': ('finite and positive, or None', lambda v: v > 0, float),
  'noise_seed': ('a whole number, or None', _is_whole, int),
}


@dataclasses.dataclass(frozen=True, eq=False)
class CorrelatedNoiseFactory(tff.aggregators.UnweightedAggregationFactory):
  """Releases (sum of bounded updates + row t of N·Z) / report_goal in round t.

  Each update is clipped to clip_norm in L2, over all its tensors. One that holds a NaN or an
  infinity is rejected, one whose L∞ norm exceeds zeroing_norm is zeroed: both enter the sum as
  zeros and never reach the noise. Entries of Z have standard deviation noise_multiplier ·
  clip_norm, for C as the strategy states it. What that guarantees depends on the participation
  that happened, which the aggregator does not know: account with the participation log. The
  accounting is that of real numbers; the rounding of float32 sums is not part of it.

  The state knows strategy, seed, noise multiplier and clip norm of the factory
  that made it. A round from the state of another factory fails; `change_noise`
  takes a state to another noise multiplier or clip norm, `restart_noise` begins anew.

  Measurements:
    clipped_count, zeroed_count, rejected_count: updates that were scaled down,
      too large, or not finite (int32). They are exact, without noise of their
      own: they lie outside the privacy guarantee. TFF's own client work sends
      zeros where training ended in a NaN; those are not counted here.
    noise_row: t, the row of N·Z in this release (int64).
    noise_stddev: standard deviation of each coordinate of this row, before the
      division by report_goal (float32).
    inner: measurements of the inner factory.

  Attributes:
    strategy: C and N, of a family that has a noise stream.
    noise_multiplier: std(Z) / clip_norm, at least 0.
    clip_norm: L2 bound on an update, positive.
    report_goal: updates that a round needs, the fixed divisor of the sum.
    zeroing_norm: L∞ norm above which an update is zeroed; None for no limit.
    inner_factory: sums the bounded updates; None for
      `tff.aggregators.SumFactory`. Any other has to sum known updates when the process is
      created: a mean is refused, which would divide twice. For secure aggregation give
      `tff.aggregators.SecureSumFactory(clip_norm)`, with a float: no coordinate exceeds
      clip_norm, wider bounds waste precision, and narrower ones cut updates. It must not add to
      what it sums: what that adds to sensitivity is not accounted for, and neither is rounding.
    noise_seed: None for a secret seed, fresh from the operating system with each
      `initialize()`. A number makes the noise repeatable, for tests, and voids the guarantee.
    memory: where noise is kept. 'state': in TFF's state, as buffers. 'engine': by this
      process, which makes the row of the next round while clients train; the state
      holds seed and row. Rounds must then run in process. 'auto': state where it fits
      into the free memory when the process is built, else an engine. A `RowServer`: in
      its files, for TFF's worker on this machine; `learning.served` serves each round's
      row, and the state is a few numbers. The rows of the three differ, so none
      continues another's state.
    noise_folder: folder of an engine, for snapshots of its buffers, from which a run is
      resumed sooner, and for a mapped file if they do not fit into memory. It holds
      noise: only its owner can read it. None: no snapshots.

  Raises:
    ValueError: for an attribute that will not do.
  """

  strategy: strategies.Strategy
  _: dataclasses.KW_ONLY
  noise_multiplier: float
  clip_norm: float
  report_goal: int
  zeroing_norm: float | None = None
  inner_factory: tff.aggregators.UnweightedAggregationFactory | None = None
  noise_seed: int | None = None
  memory: str | servers.RowServer = placement.AUTO
  noise_folder: str | os.PathLike[str] | None = None
  _chosen: dict[int, str] = dataclasses.field(default_factory=dict, init=False, repr=False)

  def __post_init__(self):
    strategy = self.strategy
    if isinstance(strategy, type) or not isinstance(strategy, strategies.Strategy):
      raise ValueError(f'strategy must be a Strategy, got {strategy!r}')
    for name, (what, is_valid, kind) in _NUMBERS.items():
      value = getattr(self, name)
      if value is None and name in ('zeroing_norm', 'noise_seed'):
        continue
      is_number = isinstance(value, numbers.Real) and math.isfinite(value)
      if isinstance(value, bool) or not is_number or not is_valid(value):
        raise ValueError(f'{name} must be {what}, got {value!r}')
      object.__setattr__(self, name, kind(value))
    if isinstance(self.memory, servers.RowServer):
      stddev = self.noise_multiplier * self.clip_norm
      by_reference.check_rows(self.memory, strategy, stddev, self.noise_seed)
    elif self.memory not in placement.CHOICES:
      choices = ', '.join(placement.CHOICES)
      raise ValueError(f'memory must be one of {choices} or a RowServer, got {self.memory!r}')
    if self.inner_factory is None:
      object.__setattr__(self, 'inner_factory', tff.aggregators.SumFactory())
    elif not isinstance(self.inner_factory, tff.aggregators.UnweightedAggregationFactory):
      raise ValueError(
        'inner_factory must be a'
        ' tff.aggregators.UnweightedAggregationFactory, got'
        f' {self.inner_factory!r}'
      )
    inner_sum.check_no_mean(self.inner_factory)

  def noise_stream(self, value_type: tff.Type) -> noise_base.NoiseStream:
    """Returns the noise stream for sums of updates of a type.

    Raises:
      ValueError: unless value_type holds float32 tensors of known shapes, and
        their noise fits where it is to be kept.
    """
    template = _template(value_type)
    same: dict[str, Any] = dict(
      stddev=self.noise_multiplier * self.clip_norm, noise_seed=self.noise_seed
    )
    if isinstance(self.memory, servers.RowServer):
      stream = by_reference.make_stream(self.memory, template)
    elif self._placed(self.memory, value_type) == placement.ENGINE:
      stream = by_engine.make_stream(self.strategy, template, **same, folder=self.noise_folder)
    else:
      stream = streams.make_stream(self.strategy, template, **same)
    return parameters_lib.bind(stream, self.parameters(value_type))

  def _placed(self, asked: str, value_type: tff.Type) -> str:
    """Returns where noise for updates of a type is kept, each time the same."""
    specs = streams.check_template(_template(value_type))
    model_bytes = tf.float32.size * sum(spec.shape.num_elements() for spec in specs)
    if model_bytes not in self._chosen:
      # Once: the free memory may be another when the state is advanced.
      self._chosen[model_bytes] = placement.choose(self.strategy, model_bytes, asked)
    return self._chosen[model_bytes]

  def parameters(self, value_type: tff.Type) -> parameters_lib.Parameters:
    """Returns the parameters that a noise state is bound to."""
    return parameters_lib.of(
      self.strategy,
      seed=self._seed_identity(value_type),
      noise_multiplier=self.noise_multiplier,
      clip_norm=self.clip_norm,
    )

  def _seed_identity(self, value_type: tff.Type) -> int:
    if isinstance(self.memory, servers.RowServer):
      return self.memory.identity
    if self._placed(self.memory, value_type) == placement.ENGINE:
      return by_engine.seed_identity(self.noise_seed)
    if self.noise_seed is None:
      return 0
    return digests.short_digest(b'fl_dpftrl given seed %d' % self.noise_seed)

  def bound(self, update: Any) -> clipping.BoundedUpdate:
    """Clips, zeroes or rejects one device's update in TensorFlow."""
    return clipping.bound_update(update, clip_norm=self.clip_norm, zeroing_norm=self.zeroing_norm)

  def release(self, stream: noise_base.NoiseStream, total: Any, noise: Any) -> tuple[Any, Any]:
    """Maps (sum, noise state) to (result, next noise state), in TensorFlow."""
    row, advanced = stream.next(noise)
    divisor = float(self.report_goal)
    result = tf.nest.map_structure(
      lambda part, noise_part: (part + noise_part) / divisor, total, row
    )
    return result, advanced

  def skip_row(self, value_type: tff.Type) -> tff.Computation:
    """A computation that burns a row of noise: drawn, and never released.

    It takes the aggregator's state (for a learning process, `state.aggregator`) to one whose
    noise is, bit for bit, what the next round would have left. It runs where rounds run, since
    logarithms and cosines differ in their last bits from one build of TensorFlow to another.

    Args:
      value_type: of the updates; for a learning process,
        `process.get_model_weights.type_signature.result.trainable`.

    Raises:
      ValueError: as `noise_stream`.
    """
    return self._on_noise(value_type, self.noise_stream(value_type).skip)

  def change_noise(self, value_type: tff.Type, declared: noise_record.Declared) -> tff.Computation:
    """A computation that takes over the state of a factory of other noise.

    It takes the aggregator's state to one of this factory, whose noise_multiplier, clip_norm or
    both are others. Seed and row stay; the next round has the row that it would have had, times
    the new standard deviation. The computation fails for any state but the one at which the
    change was declared: of its row, strategy and seed, and of the noise before.

    Args:
      value_type: as for `skip_row`.
      declared: the change, as `LogWriter.change_noise` recorded it in the participation log.

    Raises:
      ValueError: as `noise_stream`, and if the factory is not the one of the declared change.
    """
    own = self.parameters(value_type)
    parameters_lib.check_declared(own, declared, restart=False)
    return self._on_noise(value_type, lambda noise: parameters_lib.change(noise, own, declared))

  def restart_noise(self, value_type: tff.Type, declared: noise_record.Declared) -> tff.Computation:
    """A computation without arguments that begins the noise anew, after a declared restart.

    It returns an aggregator state of this factory at row 0, with a fresh seed. It takes the place
    of the state before, of this aggregator or any other; the guarantees of both compose.

    Args:
      value_type: as for `skip_row`.
      declared: the restart, as `LogWriter.change_noise` recorded it in the participation log.

    Raises:
      ValueError: as `create`, and if the factory is not the one of the declared restart.
    """
    parameters_lib.check_declared(self.parameters(value_type), declared, restart=True)
    return self.create(value_type).initialize

  def _on_noise(self, value_type: tff.Type, advance: Callable[[Any], Any]) -> tff.Computation:
    """Returns a computation that advances the noise in an aggregator state."""
    state_type = self.create(value_type).initialize.type_signature.result.member
    advance_noise = tff.tensorflow.computation(advance, state_type.noise)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER))
    def advance_state(state):
      noise = tff.federated_map(advance_noise, state.noise)
      return tff.federated_zip(AggregatorState(inner=state.inner, noise=noise))

    return advance_state

  def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Builds the process for updates of a type.

    Raises:
      ValueError: as `noise_stream`, and unless inner_factory sums.
    """
    stream = self.noise_stream(value_type)
    inner_process = inner_sum.create(self.inner_factory, value_type, self.clip_norm)
    init_noise = tff.tensorflow.computation(stream.init)

    @tff.tensorflow.computation(value_type)
    def bound(update):
      bounded, *counts = self.bound(update)
      return bounded, counts

    @tff.tensorflow.computation(value_type, init_noise.type_signature.result)
    def add_noise(total, noise):
      result, advanced = self.release(stream, total, noise)
      return result, advanced, noise.row, advanced.row_stddev

    @tff.federated_computation()
    def init_fn():
      noise = tff.federated_eval(init_noise, tff.SERVER)
      return tff.federated_zip(AggregatorState(inner=inner_process.initialize(), noise=noise))

    @tff.federated_computation(
      init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, updates):
      bounded, counts = tff.federated_map(bound, updates)
      inner = inner_process.next(state.inner, bounded)
      clipped, zeroed, rejected = tff.federated_sum(counts)
      result, noise, row, stddev = tff.federated_map(add_noise, (inner.result, state.noise))
      measurements = collections.OrderedDict(
        clipped_count=clipped,
        zeroed_count=zeroed,
        rejected_count=rejected,
        noise_row=row,
        noise_stddev=stddev,
        inner=inner.measurements,
      )
      return tff.templates.MeasuredProcessOutput(
        state=tff.federated_zip(AggregatorState(inner=inner.state, noise=noise)),
        result=result,
        measurements=tff.federated_zip(measurements),
      )

    return tff.templates.AggregationProcess(init_fn, next_fn)
