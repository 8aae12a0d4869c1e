"""Training of a run: everything put together, trained, and reported."""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from experiments.stackoverflow import (
  canaries,
  configuration,
  datasets,
  networks,
  optimizers,
  outcome,
  setting,
)
from experiments.stackoverflow import machines as machines_lib
from experiments.stackoverflow import model as model_lib
from experiments.stackoverflow import monitor as monitor_lib
from experiments.stackoverflow import noise as noise_lib
from experiments.stackoverflow import so_far as so_far_lib
from experiments.stackoverflow import weights as weights_lib
from fl_dpftrl import runtime, schedules
from fl_dpftrl.aggregators import factory as factory_lib
from fl_dpftrl.aggregators import process_check
from fl_dpftrl.families import base
from fl_dpftrl.learning import interrupts, loop, metrics, numbered
from fl_dpftrl.learning import process as process_lib
from fl_dpftrl.logs import metric_names
from fl_dpftrl.runtime import memory
from fl_dpftrl.simulation import cohorts

METRICS_NAME = 'metrics.csv'
TENSORBOARD_NAME = 'tensorboard'


def train(
  hparams: configuration.Hparams,
  folder: pathlib.Path,
  *,
  dataset: datasets.Dataset,
  simulation: cohorts.Simulation,
  strategy: base.Strategy,
  machines: machines_lib.Machines,
  compare_with: pathlib.Path | None,
  figures: str,
  on_step: Callable[[str, int], None],
  interrupt: interrupts.Interrupt,
  say: Callable[[str], None],
) -> None:
  """Trains and reports a run, whose flags fit its data.

  Args:
    hparams, folder, machines, compare_with, figures, on_step, interrupt: see
      `run.run`.
    dataset: text of the devices.
    simulation: the devices and their rounds.
    strategy: of the noise.
    say: told, in a line, what the user should know.

  Raises:
    ValueError: for flags that do not fit each other, and where the run in the
      folder cannot go on.
  """
  num_devices = simulation.population.num_devices
  num_rounds = setting.num_rounds(hparams, strategy, say)
  network = networks.chosen(hparams, dataset.vocabulary.size)
  if machines.address is None:
    _share_processors(4 * networks.num_parameters(network), machines)
  factory = noise_lib.aggregator(
    hparams, strategy, networks.num_parameters(network), folder, machines
  )
  inserted = canaries.of_run(
    hparams,
    schema=setting.planned_schema(dataclasses.replace(hparams, num_rounds=num_rounds), num_devices),
    size=networks.num_parameters(network),
    clients=dataset.train_clients,
  )
  if inserted is not None:
    factory = inserted.factory(factory)
  trained, learned = federation(hparams, dataset, network, simulation, factory)
  fixed = process_lib.warning_of_fixed_weights(trained.process)
  if fixed is not None:
    say(fixed)
  interrupt.check()
  with _runtime(machines, hparams.seed, say) as context:
    # From here on the flags are known to be right.
    hparams.record(folder)
    setting.record_strategy(hparams, folder, num_devices, strategy)
    trained = dataclasses.replace(
      trained, process=numbered.NumberedProcess(trained.process, context)
    )
    if inserted is not None:
      trained = inserted.federation(trained)
    # TensorFlow sets no permissions, and what it writes here is unprotected.
    events = monitor_lib.events_folder(folder / TENSORBOARD_NAME, folder.name)
    interrupt.on_abort(context.stop)

    def step_done(step: str, round_index: int) -> None:
      on_step(step, round_index)
      interrupt.check()

    so_far = so_far_lib.SoFar(hparams, strategy)
    interrupt.check()
    table = metrics.MetricsTable(folder / METRICS_NAME)
    monitor = monitor_lib.Monitor(
      table=table,
      writer=monitor_lib.event_writer(events, hparams),
      num_rounds=num_rounds,
      rounds_per_evaluation=hparams.rounds_per_evaluation,
      evaluate=lambda weights: model_lib.evaluate(
        network, weights.trainable, dataset.validation, dataset.vocabulary
      ),
      so_far=so_far,
      warn=say,
      status=context.status,
    )
    publish, begin = monitor.publish, monitor.begin
    if inserted is not None:
      publish, begin = inserted.publish(publish), inserted.begin(folder, begin)
    last = loop.run(
      trained,
      folder,
      num_rounds=num_rounds,
      publish=publish,
      begin=begin,
      published=max(table.rounds, default=-1) + 1,
      log_metadata=outcome.log_metadata(hparams, strategy) | metric_names.metadata(learned.metrics),
      follow=so_far.follow,
      on_step=step_done,
      warn=say,
    )
    test = model_lib.evaluate(
      network, last.state.global_model_weights.trainable, dataset.test, dataset.vocabulary
    )
  interrupt.check()
  print(
    outcome.write(
      folder,
      hparams=hparams,
      dataset=dataset,
      strategy=strategy,
      table=table,
      last=last,
      test=test,
      num_devices=num_devices,
      num_parameters=networks.num_parameters(network),
      compare_with=compare_with,
      audit=inserted and inserted.result(strategy, hparams, say),
      figures=figures,
    )
  )


def _share_processors(model_bytes: int, machines: machines_lib.Machines) -> None:
  """Leaves each concurrent client its part of the processors.

  TensorFlow spreads each operation over all processors, so that concurrent clients
  stand in each other's way.
  """
  if 'TF_NUM_INTRAOP_THREADS' in os.environ:
    return
  clients = memory.concurrent_clients(model_bytes, machines.concurrent_clients or None)
  share = max(1, len(os.sched_getaffinity(0)) // clients)
  # TensorFlow refuses where it has begun, in a program that trains more than once.
  with contextlib.suppress(RuntimeError):
    tf.config.threading.set_intra_op_parallelism_threads(share)


@contextlib.contextmanager
def _runtime(
  machines: machines_lib.Machines, seed: int, say: Callable[[str], None]
) -> Iterator[runtime.InProcessContext]:
  """Makes this process, or a cluster, run TFF's computations within the block.

  Raises:
    ValueError: if the cluster cannot be used.
  """
  # A round that nobody saw is repeated after a crash, and must be the same.
  tf.config.experimental.enable_op_determinism()
  if machines.address is None:
    at_most = machines.concurrent_clients or None
    with runtime.in_process(seed=seed, max_concurrent_clients=at_most) as context:
      yield context
    return
  with contextlib.ExitStack() as stack:
    try:
      actors = runtime.Actors(
        number=machines.actors or None,
        clients_per_actor=machines.clients_per_actor,
        cpus=machines.actor_cpus,
        gpus=machines.actor_gpus,
      )
      cluster = runtime.on_machines(
        machines.address,
        seed=seed,
        actors=actors,
        insecure_network=machines.insecure_network,
        say=say,
      )
      context = stack.enter_context(cluster)
    except (ImportError, ValueError) as error:
      raise ValueError(f'--machines={machines.address}: {error}') from error
    yield context


def federation(
  hparams: configuration.Hparams,
  dataset: datasets.Dataset,
  network: networks.Network,
  simulation: cohorts.Simulation,
  factory: factory_lib.CorrelatedNoiseFactory,
) -> tuple[loop.Federation, process_check.ProcessCheck]:
  """The devices' data, the DP-FedAvg process that trains on it, and what that learns from them.

  Raises:
    ValueError: for a process that learns from devices in other ways than by its aggregator.
  """
  start = None
  if hparams.initial_weights is not None:
    start = weights_lib.read(hparams.initial_weights, network, flag='initial_weights')
  model = model_lib.build(
    network,
    dataset.vocabulary,
    length=dataset.sequence_length,
    seed=hparams.seed,
    initial_weights=start,
  )
  process = process_lib.build(
    model,
    aggregator=factory,
    client_learning_rate=hparams.client_learning_rate,
    client_optimizer=optimizers.client(hparams),
    server_learning_rates=schedules.warmup_cooldown(
      hparams.server_learning_rate,
      hparams.num_rounds,
      warmup_fraction=hparams.warmup_fraction,
      cooldown_fraction=hparams.cooldown_fraction,
    ),
    server_momentum=hparams.server_momentum,
    server_optimizer=optimizers.server(hparams),
  )

  def data_of(round_index: int, device_id: str) -> tf.data.Dataset:
    return datasets.client_dataset(
      dataset,
      device_id,
      batch_size=hparams.batch_size,
      max_sentences=hparams.max_sentences,
      epochs=hparams.client_epochs,
      seed=(hparams.seed, round_index),
    )

  def client_data(round_index: int, device_ids: Sequence[Any]) -> list[Any]:
    return [runtime.Later(data_of, (round_index, str(one))) for one in device_ids]

  devices = np.array(dataset.train_clients)
  weights = process.get_model_weights.type_signature.result
  # Most runs burn no row, and this takes a tenth of a short one's time.
  skip_row = functools.cache(lambda: factory.skip_row(weights.trainable))
  trained = loop.Federation(
    process=process,
    skip_row=lambda state: skip_row()(state),
    rounds=lambda: setting.rounds(hparams, cohorts.named(simulation.rounds(), devices)),
    client_data=client_data,
  )
  return trained, process_check.check_process(process, factory).require()
