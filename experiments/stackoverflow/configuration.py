"""The flags of a run, checked once, and as the run records them."""

import dataclasses
import json
import math
import pathlib
from typing import Any

from absl import flags

from fl_dpftrl import addresses, files

HPARAMS_NAME = 'hparams.json'

# Beyond these a run would take any memory or time before it says so.
_MOST = {
  'report_goal': 10**7,
  'clients_per_round': 10**7,
  'num_rounds': 10**7,
  'batch_size': 10**6,
  'client_epochs': 10**4,
  'max_sentences': 10**6,
  'rounds_per_evaluation': 10**7,
  'population': 2**31 - 1,
  'timer_rounds': 10**7,
  'deployment_report_goal': 2**31 - 1,
  'embedding': 2**12,
  'vocabulary_size': 2**20,
  'seed': 2**31 - 1,
  'noise_seed': 2**63 - 1,
}
_MOST_WEIGHTS = 2**27  # of the embedding
_USUAL_VOCABULARY = 10_000

flags.DEFINE_enum(
  'dataset', 'docstrings', ['docstrings', 'stackoverflow', 'synthetic'], 'Text to train on.'
)
flags.DEFINE_string('data_dir', None, 'Folder with stackoverflow.sqlite, for that data set.')
flags.DEFINE_bool('download', False, 'Let TFF download StackOverflow where there is no file.')
flags.DEFINE_string('cache_dir', '.cache', 'Folder for prepared data.')
flags.DEFINE_string(
  'mechanism',
  None,
  'Family of the noise: blt (the default), banded, tree_online or identity.'
  ' Without --strategy, blt and banded are optimised for the run.',
)
flags.DEFINE_string('strategy', None, 'Strategy file or catalogue name, such as blt-b400.')
flags.DEFINE_float(
  'noise_multiplier',
  None,
  'std(Z) / clip_norm, for the strategy as stored; 0 trains without noise.',
)
flags.DEFINE_enum(
  'noise_memory',
  None,
  ['state', 'memory', 'mapped', 'recomputed'],
  "Where the buffers of the noise are: in TFF's state (small ones by"
  ' default), in memory beside it (others), in a file in checkpoints/ that is'
  ' mapped into memory, or nowhere: rows are then drawn again in every round.',
)
flags.DEFINE_float('clip_norm', 1.0, "L2 bound on a device's update.")
flags.DEFINE_float('zeroing_norm', None, 'Updates with a larger L∞ norm are dropped.')
flags.DEFINE_integer('report_goal', None, 'Devices a round needs; divisor of their sum.')
flags.DEFINE_integer(
  'clients_per_round', None, 'Devices invited to a round; report_goal of them are used.'
)
flags.DEFINE_float('dropout', 0.0, 'Chance that an invited device drops out.')
flags.DEFINE_integer('population', None, 'Devices, at most the training clients: all of them.')
flags.DEFINE_integer('timer_rounds', None, 'Rounds from one participation to the next, at least.')
flags.DEFINE_float('timer_hours', None, 'The same in simulated hours, instead of rounds.')
flags.DEFINE_bool('diurnal', False, 'Devices are available at night only, each in its zone.')
flags.DEFINE_string('traces', None, 'Instead, as in a file of traces, of FedScale or FLASH.')
flags.DEFINE_float('check_ins_per_hour', 2.0, 'Median of how often an available device asks.')
flags.DEFINE_float('report_minutes', 3.0, 'Median simulated minutes that a device trains.')
flags.DEFINE_integer('num_rounds', None, 'Rows of noise to use.')
flags.DEFINE_float('client_learning_rate', 1.0, "Of the devices' SGD.")
flags.DEFINE_float('server_learning_rate', 1.0, "Of the server's SGD.")
flags.DEFINE_float('server_momentum', 0.95, "Of the server's SGD.")
flags.DEFINE_float('warmup_fraction', 0.15, "Rounds over which the server's rate rises.")
flags.DEFINE_float('cooldown_fraction', 0.25, "Rounds over which the server's rate falls.")
flags.DEFINE_integer('batch_size', 16, "Sentences in a device's batch.")
flags.DEFINE_integer('client_epochs', 1, "Passes over a device's sentences.")
flags.DEFINE_integer('max_sentences', 256, 'Most sentences that a device uses in a round.')
flags.DEFINE_enum(
  'model',
  None,
  ['log_bilinear', 'lstm'],
  "Network: by default the papers' lstm for StackOverflow, and the much"
  ' quicker log_bilinear for the others.',
)
flags.DEFINE_integer('embedding', None, "Size of a word's embedding; the network's own if None.")
flags.DEFINE_integer('vocabulary_size', None, "Words known; the data set's own number if None.")
flags.DEFINE_integer('rounds_per_evaluation', 20, 'Rounds between two evaluations.')
flags.DEFINE_float('delta', 1e-6, 'δ at which ε is stated.')
flags.DEFINE_integer(
  'deployment_report_goal',
  None,
  "Report goal of a deployment whose hypothetical ε stands beside the run's:"
  ' same noise multiplier per device, same participation.',
)
flags.DEFINE_integer('seed', 0, 'Of data, cohorts and initial weights; not of the noise.')
flags.DEFINE_integer(
  'noise_seed', None, 'Makes the noise reproducible, for tests: the run then has no guarantee.'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hparams:
  """Hyperparameters of a run; field names are flag names.

  Raises:
    ValueError: naming the flag, its value and what would do.
  """

  dataset: str
  data_dir: str | None
  download: bool
  cache_dir: str
  mechanism: str | None
  strategy: str | None
  noise_multiplier: float
  noise_memory: str | None
  clip_norm: float
  zeroing_norm: float | None
  report_goal: int
  clients_per_round: int | None
  dropout: float
  population: int | None
  timer_rounds: int | None
  timer_hours: float | None
  diurnal: bool
  traces: str | None
  check_ins_per_hour: float
  report_minutes: float
  num_rounds: int
  client_learning_rate: float
  server_learning_rate: float
  server_momentum: float
  warmup_fraction: float
  cooldown_fraction: float
  batch_size: int
  client_epochs: int
  max_sentences: int
  model: str | None
  embedding: int | None
  vocabulary_size: int | None
  rounds_per_evaluation: int
  delta: float
  deployment_report_goal: int | None
  seed: int
  noise_seed: int | None

  def __post_init__(self):
    for name in ('noise_multiplier', 'report_goal', 'num_rounds'):
      if getattr(self, name) is None:
        raise ValueError(f'--{name} is missing; a flagfile gives all that a run needs')
    for name in (
      'report_goal',
      'num_rounds',
      'batch_size',
      'client_epochs',
      'max_sentences',
      'rounds_per_evaluation',
      'clients_per_round',
      'population',
      'timer_rounds',
      'deployment_report_goal',
      'embedding',
      'vocabulary_size',
    ):
      value = getattr(self, name)
      if value is not None and value < 1:
        raise ValueError(f'--{name}={value} must be at least 1')
    for name, most in _MOST.items():
      value = getattr(self, name)
      if value is not None and value > most:
        raise ValueError(f'--{name}={value} must be at most {most}')
    words = self.vocabulary_size or _USUAL_VOCABULARY
    if (self.embedding or 1) * words > _MOST_WEIGHTS:
      raise ValueError(
        f'--embedding={self.embedding} for {words} words is'
        f' {self.embedding * words} weights; at most {_MOST_WEIGHTS} are'
        ' supported, so give less, or less --vocabulary_size'
      )
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f'--{field.name}={value} must be a finite number')
    for name in ('client_learning_rate', 'server_learning_rate', 'clip_norm'):
      value = getattr(self, name)
      if not (value > 0 and math.isfinite(value)):
        raise ValueError(f'--{name}={value} must be positive')
    if not (self.noise_multiplier >= 0 and math.isfinite(self.noise_multiplier)):
      raise ValueError(f'--noise_multiplier={self.noise_multiplier} must be at least 0')
    if not 0 < self.delta < 1:
      raise ValueError(f'--delta={self.delta} must lie between 0 and 1')
    if self.timer_rounds is not None and self.timer_hours is not None:
      raise ValueError(
        f'--timer_rounds={self.timer_rounds} and'
        f' --timer_hours={self.timer_hours}: give one of the two'
      )
    if self.traces is not None and self.diurnal:
      raise ValueError(f'--diurnal and --traces={self.traces}: give one of the two')
    for name in ('seed', 'noise_seed'):
      value = getattr(self, name)
      if value is not None and value < 0:
        raise ValueError(f'--{name}={value} must be at least 0')
    if self.deployment_report_goal is not None and self.deployment_report_goal < self.report_goal:
      raise ValueError(
        f'--deployment_report_goal={self.deployment_report_goal} is below'
        f' --report_goal={self.report_goal}'
      )

  def to_json(self) -> dict[str, Any]:
    """Returns all flags, but leaves out the value of a noise seed."""
    recorded = dataclasses.asdict(self)
    recorded['noise_seed'] = None if self.noise_seed is None else 'given'
    return recorded

  def record(self, folder: pathlib.Path) -> None:
    """Writes hparams.json into the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(self.to_json(), indent=2) + '\n'
    files.write_durably(folder / HPARAMS_NAME, text.encode())


RUNTIMES = ('in_process', 'worker')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
  """Machines that compute a run; changing them does not change its result.

  Attributes:
    workers: host:port of each process that trains clients; empty to train here.
    noise_workers: host:port of each process that makes noise; empty to make it
      in this process.
    noise_key: key by which the noise workers know this process.
    concurrent_clients: clients that train here at the same time; 0 for as many
      as processors and memory allow. Each takes several times the model's
      memory.
    runtime: runtime that trains clients here, 'in_process' or TFF's 'worker'.

  Raises:
    ValueError: naming the flag, and what would do.
  """

  workers: tuple[str, ...] = ()
  noise_workers: tuple[str, ...] = ()
  noise_key: bytes = b''
  concurrent_clients: int = 0
  runtime: str = 'in_process'

  def __post_init__(self):
    if self.runtime not in RUNTIMES:
      raise ValueError(f'--runtime={self.runtime} is unknown; known are {", ".join(RUNTIMES)}')
    if self.concurrent_clients < 0:
      raise ValueError(f'--max_concurrent_clients={self.concurrent_clients} must be at least 0')
    for flag, texts in (
      ('worker_addresses', self.workers),
      ('noise_worker_addresses', self.noise_workers),
    ):
      try:
        addresses.parse_all(texts)
      except ValueError as error:
        raise ValueError(f'--{flag}: {error}') from error


def from_flags() -> Hparams:
  """The hyperparameters that the command line gives."""
  return Hparams(
    **{field.name: flags.FLAGS[field.name].value for field in dataclasses.fields(Hparams)}
  )
