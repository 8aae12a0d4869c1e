"""The aggregator: bounds updates, sums them, adds correlated noise."""

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates, lattice_units, run_claim
from fl_dpftrl.claims import canaries as canary_claims
from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.noise import randomness
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import paths
from fl_dpftrl.support.text import messages
from fl_dpftrl.tff.aggregators import (
  adaptive,
  bound_parameters,
  by_engine,
  canary_sums,
  fixed,
  placement,
  secure_sums,
  update_bounds,
  update_types,
)

_OPTIONAL = ('zeroing_norm', 'noise_seed', 'noise_machines')
_NUMBERS = ('noise_multiplier', 'clip_norm', 'report_goal', *_OPTIONAL)


@dataclasses.dataclass(frozen=True, eq=False)
class CorrelatedNoiseFactory(tff.aggregators.UnweightedAggregationFactory):
  """Releases (sum of bounded updates + row t of N·Z) / report_goal in round t.

  Each update is clipped to clip_norm in L2, over all its tensors. One that holds a NaN or an
  infinity is rejected, one whose L∞ norm exceeds zeroing_norm is zeroed: both enter the sum as
  zeros and never reach the noise. Entries of Z have standard deviation noise_multiplier ·
  clip_norm, for C as the strategy states it. What that guarantees depends on the participation
  that happened, which the aggregator does not know: account with the participation log.

  Updates and rows of noise are whole multiples of a public unit, and so are their sums, without
  any rounding; the result is converted to float32 last. With noise that an engine makes, the
  guarantee is that of the bits that are released (docs/decisions/arithmetic.md).

  The state knows strategy, seed, noise multiplier and clip norm of the factory
  that made it. A round from the state of another factory fails: other noise is another run.

  An `AdaptiveClipping` as clip norm follows a quantile of the updates' norms. The noise
  multiplier is then that of updates and counts together, so the guarantee is that of a fixed
  clip norm, and Z has a little more noise (`AdaptiveClipping.update_noise_multiplier`). The noise
  stream and the inner factory are for pairs (update in units of the clip norm, three counts).

  Measurements:
    clipped_count, zeroed_count, rejected_count: updates that were scaled down,
      too large, or not finite (int32). They are exact, without noise of their
      own: they lie outside the privacy guarantee. TFF's own client work sends
      zeros where training ended in a NaN; those are not counted here.
    noise_row: t, the row of N·Z in this release (int64).
    noise_stddev: standard deviation of each coordinate of this row, before the
      division by report_goal (float32).
    inner: measurements of the inner factory.
    clip_norm, clipped_fraction: with adaptive clipping, the clip norm of the round, and the share
      of clipped updates in report_goal. This share and the three counts then have noise
      and lie within the guarantee (float32).
    metrics, metrics_stddev: with metrics, their noised means over report_goal by name, and the
      standard deviation of the noise in each (float32). There are no counts without noise then.

  Attributes:
    strategy: C and N, of a family that has a noise stream.
    noise_multiplier: std(Z) / clip_norm, at least 0.
    clip_norm: L2 bound on an update, positive; or an `AdaptiveClipping`.
    report_goal: updates that a round needs, the fixed divisor of the sum.
    zeroing_norm: L∞ norm above which an update is zeroed; None for no limit.
    metrics: name → public upper bound of a metric of clients, whose values are from 0 to it. A
      client then sends a pair: its update, and the metrics as float32 in the order of their sorted
      names. `build_fed_avg` builds such clients.
    metrics_stddev: see `claims.extra_coordinates.PrivateMetrics`.
    inner_factory: sums the bounded updates, which are int64 tensors; None for
      `tff.aggregators.SumFactory`. 'secure' is `tff.aggregators.SecureModularSumFactory` with the
      modulus that report_goal and the noise need, and gives the same bits; every context here
      computes it as a plain sum. One with another modulus is taken where that has room.
    noise_seed: None for a secret seed, fresh from the operating system with each
      `initialize()`. A number makes the noise repeatable, for tests, and voids the guarantee.
    memory: where noise is kept. 'engine': by this process, which makes the row of the next round
      while clients train. Rounds must then run in process. Its normals are exactly rounded, from
      256 secret bits. 'state': in TFF's state, for rounds that run elsewhere; its normals are those
      of TensorFlow, so the guarantee is that of real numbers. 'auto': an engine where TFF's
      computations run in process, else state. Neither continues the other's state.
    noise_folder: folder of an engine, for snapshots of its buffers, from which a run is
      resumed sooner, and for a mapped file if they do not fit into memory. It holds
      noise: only its owner can read it. None: no snapshots.
    noise_machines: number of actors of a Ray cluster that make an engine's rows, each a slice,
      for buffers that do not fit into one machine; they see the seed. None: this process. The
      rows are the same. `tff_inprocess.use_machines` connects the cluster.
    canaries: made-up devices of the run, whose updates `with_canaries` puts into the state of a
      round; None without.
  """

  strategy: strategies.Strategy
  _: dataclasses.KW_ONLY
  noise_multiplier: float
  clip_norm: float | adaptive_clipping.AdaptiveClipping
  report_goal: int
  zeroing_norm: float | None = None
  metrics: Mapping[str, float] | None = None
  metrics_stddev: float | None = None
  inner_factory: tff.aggregators.UnweightedAggregationFactory | str | None = None
  noise_seed: int | None = dataclasses.field(default=None, repr=False)
  memory: str = placement.AUTO
  noise_folder: str | os.PathLike[str] | None = None
  noise_machines: int | None = None
  canaries: canary_claims.Canaries | None = None
  _chosen: dict[int, str] = dataclasses.field(default_factory=dict, init=False, repr=False)
  _created: dict[tff.Type, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

  def __post_init__(self):
    object.__setattr__(self, 'strategy', files.resolved(self.strategy))
    for name in _NUMBERS:
      value = getattr(self, name)
      if value is None and name in _OPTIONAL:
        continue
      if name == 'clip_norm' and isinstance(value, adaptive_clipping.AdaptiveClipping):
        continue
      if name == 'clip_norm' and isinstance(value, tff.templates.EstimationProcess):
        raise ValueError(
          'clip_norm must be a number or a dpftrl.AdaptiveClipping, whose noise is accounted for;'
          " got TFF's estimation process, whose noise is not"
        )
      object.__setattr__(self, name, lattice_units.checked(name, value))
    checks.one_of(placement.CHOICES, memory=self.memory)
    if self.noise_machines is not None and self.memory != placement.ENGINE:
      raise ValueError("noise_machines is for memory='engine', whose rows are made outside TFF")
    if self.noise_folder is not None:
      object.__setattr__(self, 'noise_folder', paths.local(self.noise_folder))
    if self.inner_factory is None:
      object.__setattr__(self, 'inner_factory', tff.aggregators.SumFactory())
    secure_sums.check(self.inner_factory)
    if self.canaries is not None:
      checks.instance(canary_claims.Canaries, canaries=self.canaries)
      if self.canaries.norm != 1.0:
        raise ValueError('canaries of other norms are for loops that clip them, with no TFF')
    _ = self.unit  # Raises for noise that is too small, or counts that have too little.

  @functools.cached_property
  def private_metrics(self) -> extra_coordinates.PrivateMetrics | None:
    """Metrics that are released with noise; None without."""
    return extra_coordinates.private_metrics(self.metrics, self.metrics_stddev)

  @property
  def first_clip_norm(self) -> float:
    """The clip norm of round 0; that of all rounds unless it is adaptive."""
    return self.clip_norm if isinstance(self.clip_norm, float) else self.clip_norm.initial

  @functools.cached_property
  def unit(self) -> lattice_units.Unit:
    """Units of the updates and counts that are summed."""
    if not self.noise_multiplier:
      bits = secure_sums.bits_without_noise(self.inner_factory, self.report_goal)
      return lattice_units.Unit.without_noise(bits, len(self.groups))
    return lattice_units.Unit.of(self.noise_multiplier, self.groups)

  @functools.cached_property
  def groups(self) -> tuple[extra_coordinates.Group, ...]:
    """Coordinates beside the updates: counts of an adaptive clip norm, and metrics."""
    return adaptive_clipping.groups(
      self.clip_norm, self.private_metrics, self.noise_multiplier, self.report_goal
    )

  def _summed(self, value_type: tff.Type) -> Any:
    """Returns the specs, int64, of what is summed and noised, for updates of a type."""
    template = update_types.specs(value_type)
    whole = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape, tf.int64), template)
    number = sum(len(group.names) for group in self.groups)
    return (whole, tf.TensorSpec([number], tf.int64)) if number else whole

  def noise_stream(self, value_type: tff.Type) -> streams.NoiseStream:
    """Returns the noise stream for sums of updates of a type, in units of the lattice."""
    template, digest = self._summed(value_type), self.parameters(value_type)
    if self._placed(value_type)[0] == placement.ENGINE:
      stream = by_engine.make_stream(
        self.strategy,
        template,
        noise_seed=self.noise_seed,
        is_silent=not self.noise_multiplier,
        folder=self.noise_folder,
        machines=self.noise_machines,
      )
    else:
      stream = streams.make_stream(self.strategy, template, noise_seed=self.noise_seed)
    stream = bound_parameters.bind(stream, digest)
    return canary_sums.beside(stream, template, self.unit.shift) if self.canaries else stream

  def _placed(self, value_type: tff.Type) -> tuple[str, int]:
    """Returns where noise for updates of a type is kept, each time the same, and its size."""
    size = self.num_coordinates(value_type)
    if size not in self._chosen:
      # Once: the free memory may be another when the state is advanced.
      model_bytes = tf.float32.size * size
      self._chosen[size] = placement.choose(self.strategy, model_bytes, self.memory)
    return self._chosen[size], size

  def parameters(self, value_type: tff.Type) -> int:
    """Returns the digest that a noise state is bound to; of an adaptive clip norm, the first's."""
    if self._placed(value_type)[0] == placement.ENGINE:
      seed = by_engine.seed_identity(self.noise_seed)
    else:
      origin = f'fl_dpftrl graph {randomness.VERSION}, {self.noise_seed}'
      seed = documents.short_digest(origin.encode())
    return bound_parameters.digest(
      self.strategy,
      seed=seed,
      noise_multiplier=self.noise_multiplier,
      clip_norm=self.first_clip_norm,
    )

  def num_coordinates(self, value_type: tff.Type) -> int:
    """Returns the number of coordinates of a release, with counts and metrics."""
    return sum(spec.shape.num_elements() for spec in tf.nest.flatten(self._summed(value_type)))

  def arithmetic(self, value_type: tff.Type) -> arithmetics.Arithmetic:
    """Returns the numbers that releases are made of.

    Covered where an engine makes the noise; on the lattice where it is in TFF's state.
    """
    place, size = self._placed(value_type)
    return arithmetics.Arithmetic.of(self.noise_multiplier, size, place == placement.ENGINE)

  def claim(self, process: Any, **others: Any) -> run_claim.Claim:
    """Returns what a run with this aggregator claims, for a `Run` or a log.

    Args:
      process: the learning process that has this aggregator, or the type of its updates.
      others: attributes of the claim, such as its participation.
    """
    value_type = update_types.updates_of(process)
    noise_reason = run_claim.void_reason(self.noise_multiplier, self.noise_seed)
    others['void_reason'] = (
      '; '.join(filter(None, (noise_reason, others.get('void_reason')))) or None
    )
    return run_claim.Claim(
      strategy=self.strategy,
      noise_multiplier=self.noise_multiplier,
      clip_norm=self.clip_norm,
      report_goal=self.report_goal,
      private_metrics=self.private_metrics,
      canaries=self.canaries,
      arithmetic=self.arithmetic(value_type),
      **others,
    )

  def bound(self, update: Any) -> update_bounds.BoundedUpdate:
    """Clips, zeroes or rejects one device's update in TensorFlow, in whole units."""
    if not isinstance(self.clip_norm, float):
      raise ValueError('bound needs a number as clip_norm: an adaptive one is in the state')
    return update_bounds.bound_update(
      update, unit=self.unit, clip_norm=self.clip_norm, zeroing_norm=self.zeroing_norm
    )

  def sums(self, value_type: tff.Type) -> secure_sums.Sums:
    """Creates the inner process for updates of a type; ValueError as `create`."""
    summed = tff.types.tensorflow_to_type(self._summed(value_type))
    sums = secure_sums.create(
      self.inner_factory,
      summed,
      unit=self.unit,
      report_goal=self.report_goal,
      strategy=self.strategy if self.noise_multiplier else None,
      num_canaries=self.canaries.number if self.canaries else 0,
    )
    return sums._replace(has_canaries=self.canaries is not None)

  def with_canaries(self, state: Any, updates: Iterable[np.ndarray]) -> Any:
    """Returns the state of a learning process whose next round has these updates of canaries.

    Args:
      state: the state, of a process that was built with this aggregator.
      updates: flat arrays, no longer than the first clip norm; they follow an adaptive one.
    """
    total = np.zeros_like(state.aggregator.noise.canaries)
    for update in updates:  # Counts and metrics come after them.
      total[: update.size] += self.unit.integers(update, self.first_clip_norm)
    noise = state.aggregator.noise._replace(canaries=total)
    return state._replace(aggregator=state.aggregator._replace(noise=noise))

  def noised_sum(self, metrics: Mapping[str, Any]) -> tuple[np.ndarray, Mapping[str, Any]]:
    """Takes the sum with noise, a flat array, out of the metrics of a round with canaries.

    It is over the clip norm of the round, times the first.
    """
    measured = dict(metrics['aggregator'])
    parts = [np.ravel(part) for part in tf.nest.flatten(measured.pop(canary_sums.RELEASED))]
    scale = self.first_clip_norm / float(measured.get('clip_norm', self.first_clip_norm))
    released = np.concatenate(parts).astype(np.float64)
    return scale * self.report_goal * released, {**metrics, 'aggregator': measured}

  def release(
    self, sums: secure_sums.Sums, stream: streams.NoiseStream, total: Any, noise: Any
  ) -> tuple[Any, Any]:
    """Maps (sum, noise state) to (result, next noise state), for a fixed clip norm."""
    row, advanced = stream.next(noise)
    if not self.noise_multiplier:
      row = tf.nest.map_structure(lambda part: 0 * part, row)
    scale = self.unit.size * self.first_clip_norm / self.report_goal
    return sums.released(total, row, scale), advanced

  def skip_row(self, process: Any) -> tff.Computation:
    """A computation that burns a row of noise: drawn, and never released.

    It takes the aggregator's state (for a learning process, `state.aggregator`) to one whose
    noise is, bit for bit, what the next round would have left. It runs where rounds run, since
    logarithms and cosines differ in their last bits from one build of TensorFlow to another.

    Args:
      process: the learning process that has this aggregator, or the type of its updates.
    """
    value_type = update_types.updates_of(process)
    state_type = self.create(self.sent(value_type)).initialize.type_signature.result.member
    skip_noise = tff.tensorflow.computation(self.noise_stream(value_type).skip, state_type.noise)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER))
    def skip(state):
      kind: Any = adaptive.AdaptiveState if self.groups else fixed.AggregatorState
      fields = {name: getattr(state, name) for name in kind._fields}
      fields['noise'] = tff.federated_map(skip_noise, state.noise)
      return tff.federated_zip(kind(**fields))

    return skip

  def create(
    self, value_type: tff.Type, weight_type: tff.Type | None = None
  ) -> tff.templates.AggregationProcess:
    """Builds the process for updates of a type; with metrics, for what clients send with them."""
    if weight_type is not None:
      raise ValueError(
        'this algorithm weights clients, and the guarantee needs equal weights: give it'
        ' model_aggregator=tff.aggregators.as_weighted_aggregator(aggregator), which ignores them'
      )
    update_type = self._update_type(value_type)
    stream, sums = self.noise_stream(update_type), self.sums(update_type)
    if self.groups:
      rule = adaptive.Rule(
        clip_norm=self.clip_norm,
        unit=self.unit,
        groups=self.groups,
        report_goal=self.report_goal,
        zeroing_norm=self.zeroing_norm,
        has_noise=bool(self.noise_multiplier),
      )
      process = adaptive.create(rule, value_type, stream=stream, sums=sums)
    else:
      process = fixed.create(
        value_type,
        bound=self.bound,
        release=functools.partial(self.release, sums, stream),
        stream=stream,
        sums=sums,
        stddev=self.noise_multiplier * self.first_clip_norm,
      )
    self._created[update_type] = process
    return process

  def created(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
    """Returns the process that `create` made last for updates of a type, or creates it."""
    processes = [made for kind, made in self._created.items() if kind.is_equivalent_to(value_type)]
    return processes[-1] if processes else self.create(self.sent(value_type))

  def sent(self, value_type: tff.Type) -> tff.Type:
    """Returns the type of what clients send, for updates of a type."""
    if self.private_metrics is None:
      return value_type
    metrics_type = tff.TensorType(np.float32, [len(self.private_metrics.bounds)])
    return tff.StructWithPythonType([value_type, metrics_type], tuple)

  def _update_type(self, sent: tff.Type) -> tff.Type:
    """Returns the type of updates; ValueError for clients that send no metrics."""
    if self.private_metrics is None:
      return sent
    is_pair = isinstance(sent, tff.StructType) and len(tff.structure.to_elements(sent)) == 2
    if not is_pair or not sent.is_equivalent_to(self.sent(sent[0])):
      names = ', '.join(self.private_metrics.bounds)
      raise ValueError(
        f'an aggregator with metrics takes pairs (update, float32 of {names}), which clients of'
        f' build_fed_avg send, got {messages.one_line(sent, 200)}'
      )
    return sent[0]
