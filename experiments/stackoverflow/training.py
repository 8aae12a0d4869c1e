"""Training of a run: its model, data and aggregator, for the one trainer."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from experiments.stackoverflow import (
  configuration,
  datasets,
  interrupts,
  networks,
  remote_machines,
  report,
  secret_texts,
  training_model,
)
from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.planning.simulation import cohorts
from fl_dpftrl.prove.reports import settings
from fl_dpftrl.support import machine
from fl_dpftrl.tff.training import loop, processes
from tff_inprocess import memory

ROWS_NAME = 'rows'
# State is copied in each round; a row of an engine is made while clients train.
_CLIENT_MOMENTUM = 0.9
# Noise of metrics over that of updates: it makes the noise in the updates 2 % larger.
_METRICS_RATIO = 5.0
# Large enough for the noise not to be scaled up where gradients are small.
_SERVER_ADAPTIVITY = 1e-3


def train(
  hparams: configuration.Hparams,
  folder: pathlib.Path,
  *,
  dataset: datasets.Dataset,
  scenario: dpftrl.Scenario,
  strategy: dpftrl.Strategy,
  machines: remote_machines.Machines,
  compare_with: pathlib.Path | None,
  figures: str,
  interrupt: interrupts.Interrupt,
  say: Callable[[str], None],
) -> None:
  """Trains and reports a run, whose flags fit its data."""
  network, start = networks.chosen(hparams, dataset.vocabulary.size), None
  if hparams.initial_weights is not None:
    start = networks.read_weights(hparams.initial_weights, network, flag='initial_weights')
  if machines.address is None:
    _share_processors(4 * networks.num_parameters(network), machines)
  factory = aggregator(hparams, strategy, folder, machines)
  # A round that nobody saw is repeated after a crash, and must be the same.
  tf.config.experimental.enable_op_determinism()
  if hparams.public_epochs:
    say(f'learning a start from {len(dataset.public):,} sentences of public text')
    start = training_model.learnt_from_public_text(
      network, dataset, epochs=hparams.public_epochs, seed=hparams.seed
    )
  people = secret_texts.drawn(hparams, dataset, folder) if hparams.secrets else None
  data = dataset if people is None else people.data
  interrupt.check()
  process = learning_process(hparams, dataset, network, factory, start)
  interrupt.check()

  def evaluated(model_weights: tuple, rows: object) -> dict[str, float]:
    return training_model.evaluate(network, model_weights, rows, dataset.vocabulary)

  with _runtime(machines, hparams.seed, say) as context:
    interrupt.on_abort(context.stop)
    trained = dpftrl.train(
      process,
      factory,
      folder=folder,
      num_rounds=hparams.num_rounds,
      clients=data.train_clients,
      rounds=people and (lambda: people.rounds(scenario)),
      client_data=lambda t, device: datasets.client_dataset(
        data,
        device,
        batch_size=hparams.batch_size,
        max_sentences=hparams.max_sentences,
        epochs=hparams.client_epochs,
        seed=(hparams.seed, t),
      ),
      scenario=scenario,
      delta=hparams.delta,
      max_epsilon=hparams.max_epsilon,
      evaluate=lambda model_weights: evaluated(model_weights.trainable, dataset.validation),
      rounds_per_evaluation=hparams.rounds_per_evaluation,
      observers=[
        Flags(hparams, interrupt),
        dpftrl.observers.EpsilonSoFar(hparams.rounds_per_evaluation),
        dpftrl.observers.Seconds(),
        dpftrl.observers.TensorBoard(hparams.to_json()),
        dpftrl.observers.ProgressLine(hparams.rounds_per_evaluation, stream=sys.stderr),
      ],
      setting=settings.Setting(
        dataset=f'{hparams.dataset}: {data.licence}',
        unit=dataset.unit,
        strategy=hparams.strategy or f'{strategy.family}, optimised',
      ),
      context=context,
      say=say,
    )
    test = evaluated(trained.model.trainable, dataset.test)
    first = start or network.initial_weights(hparams.seed)
    remembered = people and people.remembered(network, first, trained.model.trainable)
    start_accuracy = None if start is None else evaluated(start, dataset.test)['accuracy']
  interrupt.check()
  print(
    report.write(
      trained,
      hparams.to_json(),
      dataset,
      test=test,
      start_accuracy=start_accuracy,
      remembered=remembered,
      compare_with=compare_with,
      figures=figures,
    )
  )


class Flags(dpftrl.observers.Observer):
  """Records the flags of a run and its simulated days, and ends it between two rounds.

  An interrupt within a round would lose its result.
  """

  measures = True

  def __init__(self, hparams: configuration.Hparams, interrupt: interrupts.Interrupt):
    self._hparams, self._interrupt = hparams, interrupt

  def begin(self, run, round_index=None):
    self._interrupt.check()
    if round_index is None:  # The flags are known to be right.
      self._hparams.record(run.folder)

  def released(self, run, round_index, measurements):
    done = round_index + 1
    if done % self._hparams.rounds_per_evaluation and done != run.max_rounds:
      return {}
    closed = run.guard.log.timestamp(round_index)
    return {'simulated_days': round(((closed or cohorts.START) - cohorts.START) / 86400.0, 4)}


def aggregator(
  hparams: configuration.Hparams,
  strategy: dpftrl.Strategy,
  folder: pathlib.Path,
  machines: remote_machines.Machines,
) -> dpftrl.CorrelatedNoiseFactory:
  """Returns the run's aggregator, with its noise made by this process or in TFF's state."""
  if hparams.noise_memory == 'state' and machines.noise_machines:
    raise ValueError('--noise_machines is for noise outside TFF: give --noise_memory=engine too')
  clip_norm: Any = hparams.clip_norm
  if hparams.clip_quantile is not None:
    clip_norm = dpftrl.AdaptiveClipping(
      clip_norm, target_quantile=hparams.clip_quantile, rounds=hparams.clip_rounds
    )
  return dpftrl.CorrelatedNoiseFactory(
    strategy,
    noise_multiplier=hparams.noise_multiplier,
    clip_norm=clip_norm,
    report_goal=hparams.report_goal,
    zeroing_norm=hparams.zeroing_norm,
    metrics={'accuracy': 1.0} if hparams.private_metrics else None,
    metrics_stddev=(hparams.private_metrics and _METRICS_RATIO * hparams.noise_multiplier) or None,
    noise_seed=hparams.noise_seed,
    memory=hparams.noise_memory or 'engine',
    noise_folder=folder / loop.CHECKPOINTS_NAME / ROWS_NAME,
    noise_machines=machines.noise_machines or None,
  )


def learning_process(
  hparams: configuration.Hparams,
  dataset: datasets.Dataset,
  network: networks.Network,
  factory: dpftrl.CorrelatedNoiseFactory,
  start: Sequence[np.ndarray] | None,
) -> object:
  """Returns the DP-FedAvg process of a run; it starts from weights, or from those of its seed."""
  optimizers = client_optimizer(hparams), server_optimizer(hparams)
  rates = workloads.warmup_cooldown(
    hparams.server_learning_rate,
    hparams.num_rounds,
    warmup_fraction=hparams.warmup_fraction,
    cooldown_fraction=hparams.cooldown_fraction,
  )
  model = training_model.build(
    network,
    dataset.vocabulary,
    length=dataset.sequence_length,
    seed=hparams.seed,
    initial_weights=start,
    with_accuracy=hparams.private_metrics,
  )
  return processes.build_fed_avg(
    model,
    aggregator=factory,
    client_learning_rate=hparams.client_learning_rate,
    client_optimizer=optimizers[0],
    server_learning_rates=rates,
    server_momentum=hparams.server_momentum,
    server_optimizer=optimizers[1],
  )


def client_optimizer(hparams: configuration.Hparams) -> tff.learning.optimizers.Optimizer:
  """Returns the optimiser of the clients, whose updates are clipped whatever made them."""
  optimizers, rate = tff.learning.optimizers, hparams.client_learning_rate
  return {
    'sgd': lambda: optimizers.build_sgdm(rate),
    'sgdm': lambda: optimizers.build_sgdm(rate, momentum=_CLIENT_MOMENTUM),
    'adam': lambda: optimizers.build_adam(rate),
    'adamw': lambda: optimizers.build_adamw(rate),
  }[hparams.client_optimizer]()


def server_optimizer(hparams: configuration.Hparams) -> tff.learning.optimizers.Optimizer:
  """Returns the optimiser of the server, whose learning rate is then scheduled.

  It only post-processes the noised sums. Strategies are optimised for models that are linear in
  them, as those of SGD with momentum are; for Adam and Yogi their losses are an approximation.

  Source: Reddi et al. 2020, "Adaptive federated optimization", for FedAdam,
  FedYogi and their adaptivity of 1e-3.
  """
  optimizers, rate = tff.learning.optimizers, hparams.server_learning_rate
  momentum = hparams.server_momentum
  return {
    'sgdm': lambda: optimizers.build_sgdm(rate, momentum=momentum or None),
    'adam': lambda: optimizers.build_adam(rate, beta_1=momentum, epsilon=_SERVER_ADAPTIVITY),
    'yogi': lambda: optimizers.build_yogi(rate, beta_1=momentum, epsilon=_SERVER_ADAPTIVITY),
  }[hparams.server_optimizer]()


def _share_processors(model_bytes: int, machines: remote_machines.Machines) -> None:
  """Leaves each concurrent client its part of the processors.

  TensorFlow spreads each operation over all processors, so that concurrent clients
  stand in each other's way.
  """
  if 'TF_NUM_INTRAOP_THREADS' in os.environ:
    return
  clients = memory.concurrent_clients(model_bytes, machines.max_concurrent_clients or None)
  share = max(1, machine.cores() // clients)
  # TensorFlow refuses where it has begun, in a program that trains more than once.
  with contextlib.suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(share)


@contextlib.contextmanager
def _runtime(
  machines: remote_machines.Machines, seed: int, say: Callable[[str], None]
) -> Iterator[tff_inprocess.InProcessContext]:
  """Makes this process, or a cluster, run TFF's computations within the block."""
  if machines.address is None:
    at_most, gpus = machines.max_concurrent_clients or None, tf.config.list_physical_devices('GPU')
    say(f'clients train in this process, on {f"{len(gpus)} GPUs" if gpus else "its processors"}')
    with tff_inprocess.within(seed=seed, max_concurrent_clients=at_most) as context:
      yield context
    return
  with contextlib.ExitStack() as stack:
    try:
      actors = tff_inprocess.Actors(
        number=machines.actors or None,
        clients_per_actor=machines.clients_per_actor,
        cpus=machines.actor_cpus,
        gpus=machines.actor_gpus,
      )
      cluster = tff_inprocess.on_machines(
        machines.address,
        seed=seed,
        actors=actors,
        insecure_network=machines.insecure_network,
        say=say,
      )
      context = stack.enter_context(cluster)
    except (ImportError, ValueError) as error:
      raise ValueError(f'--machines={machines.address}: {error}') from error
    say(f'clients train on actors, each with cpus={actors.cpus:g} and gpus={actors.gpus:g}')
    yield context
