"""The flags of a run, checked once, and as the run records them."""

import dataclasses
import json
import math
import pathlib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from experiments.stackoverflow import flag_files
from fl_dpftrl.support.files import durable
from fl_dpftrl.support.text import messages

HPARAMS_NAME, SUMMARY_NAME = 'hparams.json', 'summary.json'
NOISE_FLAGS = ('noise_multiplier', 'epsilon')
"""Flags of which one says how much noise there is."""

CLIENT_OPTIMIZERS = ('sgd', 'sgdm', 'adam', 'adamw')
SERVER_OPTIMIZERS = ('sgdm', 'adam', 'yogi')

# Beyond these a run would take any memory or time before it says so.
_MOST = {
  'report_goal': 10**7,
  'clients_per_round': 10**7,
  'num_rounds': 10**7,
  'batch_size': 10**6,
  'client_epochs': 10**4,
  'public_epochs': 10**4,
  'max_sentences': 10**6,
  'rounds_per_evaluation': 10**7,
  'population': 2**31 - 1,
  'timer_rounds': 10**7,
  'embedding': 2**12,
  'lstm_units': 2**13,
  'vocabulary_size': 2**20,
  'seed': 2**31 - 1,
  'noise_seed': 2**63 - 1,
}
_MOST_WEIGHTS = 2**27  # of the embedding
_USUAL_VOCABULARY = 10_000

_DEFINE = {
  bool: flags.DEFINE_bool,
  float: flags.DEFINE_float,
  int: flags.DEFINE_integer,
  str: flags.DEFINE_string,
}


def flag(
  default: Any,
  text: str,
  choices: tuple[str, ...] = (),
  shown: bool = True,
  name: str | None = None,
) -> Any:
  """Returns a field that is a flag too, with its help text; its name is the flag's by default."""
  metadata = {'help': text, 'choices': choices, 'name': name}
  return dataclasses.field(default=default, metadata=metadata, repr=shown)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hparams:
  """Hyperparameters of a run; field names are flag names."""

  dataset: str = flag(
    'docstrings',
    'Text to train on: docstrings, stackoverflow, synthetic, topics, or a path: a folder of .txt'
    " files, one a client, or a .csv, .jsonl, .parquet or LEAF's .json file.",
  )
  client_column: str = flag('client', "Column of the client's name, for a file.")
  text_column: str = flag(
    'text', 'Column or feature of the text, or of lists of token ids, for a file.'
  )
  data_dir: str | None = flag(None, 'Folder with stackoverflow.sqlite, for that data set.')
  download: bool = flag(False, 'Let TFF download StackOverflow where there is no file.')
  cache_dir: str = flag('.cache', 'Folder for prepared data.')
  mechanism: str | None = flag(
    None,
    'Family of the noise, optimised for the run (default: blt); --help lists all. Use'
    " instead of a file's --strategy.",
  )
  strategy: str | None = flag(
    None, 'Strategy file or catalogue name, such as blt-b400. Use instead of --mechanism.'
  )
  noise_multiplier: float | None = flag(
    None, 'std(Z) / clip_norm, for the strategy as stored; 0 trains without noise.'
  )
  epsilon: float | None = flag(
    None,
    'ε at --delta to which the noise multiplier is calibrated, for the participation that'
    ' --timer_rounds enforces; use instead of --noise_multiplier.',
  )
  noise_memory: str | None = flag(
    None,
    "Where the noise is made: 'engine' by this process, with buffers in memory or in a file in"
    " checkpoints/ (the default); 'state' in TFF's state,"
    ' whose lowest bits the guarantee does not cover.',
    choices=('state', 'engine'),
  )
  private_metrics: bool = flag(
    False, "Release clients' accuracy with noise, within ε, in place of exact training metrics."
  )
  clip_norm: float = flag(1.0, "L2 bound on a device's update.")
  clip_quantile: float | None = flag(
    None, 'Adaptive clipping: share of updates not to clip; --clip_norm is the first clip norm.'
  )
  clip_rounds: int = flag(100, 'Rounds after which an adaptive clip norm is kept.')
  zeroing_norm: float | None = flag(None, 'L∞ norm above which an update is dropped.')
  report_goal: int = flag(None, 'Number of reports that a round needs; fixed divisor of their sum.')
  clients_per_round: int | None = flag(
    None, 'Number of devices invited to a round; report_goal of them are used.'
  )
  dropout: float = flag(0.0, 'Probability that an invited device drops out.')
  population: int | None = flag(
    None, 'Number of devices, at most the training clients (default: all of them).'
  )
  timer_rounds: int | None = flag(None, "Minimum rounds between a device's participations.")
  max_participations: int | None = flag(
    None,
    'Rounds of a device ever, with --timer_rounds: the run is without an end, and --resume may name'
    ' more rounds. Needs a --strategy without an end, such as blt-b40-endless.',
  )
  loss_budget: bool = flag(
    False, 'With --max_participations: admit by loss, up to that of so many rounds so far apart.'
  )
  timer_hours: float | None = flag(
    None,
    "Minimum simulated hours between a device's participations; use instead of --timer_rounds.",
  )
  availability: str = flag(
    'always',
    'When devices are available: always, nightly, or as in a Parquet table of device, start, end.',
  )
  num_rounds: int = flag(None, 'Number of rounds; each uses one noise row.')
  client_optimizer: str = flag(
    'sgd', 'Optimiser of the clients; sgdm has momentum 0.9.', choices=CLIENT_OPTIMIZERS
  )
  client_learning_rate: float = flag(1.0, "Learning rate of the clients' optimiser.")
  server_optimizer: str = flag(
    'sgdm',
    'Optimiser of the server. Strategies are optimised for sgdm; the guarantee holds for all.',
    choices=SERVER_OPTIMIZERS,
  )
  server_learning_rate: float = flag(1.0, "Learning rate of the server's optimiser.")
  server_momentum: float = flag(0.95, "Momentum of the server's SGD, or β₁ of Adam and Yogi.")
  initial_weights: str | None = flag(
    None,
    'File with the weights to start from, such as model.npz of a run with the same network and'
    ' vocabulary. They must not come from the data of the devices.',
  )
  public_epochs: int = flag(
    0,
    "Passes over the data set's public text before the first round, in one place and without noise."
    ' The model that they give is the start; use instead of --initial_weights.',
  )
  warmup_fraction: float = flag(
    0.15, "Fraction of the rounds in which the server's learning rate rises."
  )
  cooldown_fraction: float = flag(
    0.25, "Fraction of the rounds in which the server's learning rate falls."
  )
  batch_size: int = flag(16, "Number of sentences in a device's batch.")
  client_epochs: int = flag(1, "Number of passes over a device's sentences.")
  max_sentences: int = flag(256, 'Maximum number of sentences that a device uses in a round.')
  model: str | None = flag(
    None,
    "Network (default: the papers' lstm for stackoverflow, and the much quicker"
    ' log_bilinear for the others).',
    choices=('log_bilinear', 'lstm'),
  )
  embedding: int | None = flag(None, "Size of a word's embedding (default: that of the network).")
  lstm_units: int | None = flag(None, "Number of the LSTM's cells (default: 670, the papers').")
  vocabulary_size: int | None = flag(None, 'Number of known words (default: that of the data set).')
  secrets: int = flag(0, 'Made-up people with secrets in their texts: does the model remember?')
  rounds_per_evaluation: int = flag(20, 'Number of rounds between two evaluations.')
  delta: float = flag(1e-06, 'δ at which ε is stated.')
  max_epsilon: float | None = flag(
    None,
    'Privacy budget of this folder, as two with the same devices spend more: the run ends before'
    ' the round that would pass this ε by the schema that --timer_rounds declares.',
  )
  seed: int = flag(0, 'Seed of data, cohorts and initial weights; not of the noise.')
  noise_seed: int | None = flag(
    None, 'Makes the noise reproducible, for tests: the run then has no guarantee.', shown=False
  )

  def __post_init__(self):
    for name in ('report_goal', 'num_rounds'):
      if getattr(self, name) is None:
        raise ValueError(f'--{name} is missing; a flagfile gives all that a run needs')
    if all(getattr(self, name) is None for name in NOISE_FLAGS):
      raise ValueError(
        '--noise_multiplier is missing; a flagfile gives all that a run needs, or --epsilon'
        ' calibrates it'
      )
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
      'max_participations',
      'embedding',
      'lstm_units',
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
    for name in ('client_learning_rate', 'server_learning_rate', 'clip_norm', 'epsilon'):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f'--{name}={value} must be positive')
    if self.noise_multiplier is not None and not self.noise_multiplier >= 0:
      raise ValueError(f'--noise_multiplier={self.noise_multiplier} must be at least 0')
    if self.max_epsilon is not None:
      if not self.max_epsilon > 0:
        raise ValueError(f'--max_epsilon={self.max_epsilon} must be positive')
      if self.timer_rounds is None or self.noise_multiplier == 0 or self.noise_seed is not None:
        raise ValueError(
          f'--max_epsilon={self.max_epsilon} needs --timer_rounds, which declares a min-sep,'
          ' a positive --noise_multiplier, and no --noise_seed'
        )
    if self.epsilon is not None and self.timer_hours is not None:
      raise ValueError(
        f'--timer_hours={self.timer_hours} enforces no min-sep in rounds to calibrate noise for:'
        ' give --timer_rounds, or --noise_multiplier'
      )
    if self.loss_budget and self.max_participations is None:
      raise ValueError('--loss_budget needs --max_participations and --timer_rounds')
    if self.max_participations is not None:
      if self.timer_rounds is None or self.strategy is None:
        raise ValueError(
          f'--max_participations={self.max_participations} needs --timer_rounds, and a --strategy'
          ' without an end, such as blt-b40-endless'
        )
      for name in ('warmup_fraction', 'cooldown_fraction'):
        if getattr(self, name):
          raise ValueError(f'--{name}={getattr(self, name)} needs a last round; give --{name}=0')
    if self.public_epochs and self.initial_weights is not None:
      raise ValueError('--public_epochs and --initial_weights exclude each other')
    if self.clip_quantile is not None and not 0 < self.clip_quantile < 1:
      raise ValueError(f'--clip_quantile={self.clip_quantile} must lie between 0 and 1')
    if not 0 < self.delta < 1:
      raise ValueError(f'--delta={self.delta} must lie between 0 and 1')
    if self.timer_rounds is not None and self.timer_hours is not None:
      raise ValueError(
        f'--timer_rounds={self.timer_rounds} and'
        f' --timer_hours={self.timer_hours}: give one of the two'
      )
    for name in ('seed', 'noise_seed', 'clip_rounds', 'public_epochs', 'secrets'):
      value = getattr(self, name)
      if value is not None and value < 0:
        raise ValueError(f'--{name}={value} must be at least 0')
    if self.secrets:
      if not 1 <= (self.timer_rounds or 0) <= self.num_rounds or self.loss_budget:
        raise ValueError(
          f'--secrets={self.secrets} needs --timer_rounds, of at most --num_rounds, as the min-sep'
          ' of made-up people, and no --loss_budget'
        )
      if self.secrets > (most := self.timer_rounds * self.report_goal):
        raise ValueError(f'--secrets={self.secrets} must be at most {most}, --report_goal a round')

  def to_json(self) -> dict[str, Any]:
    """Returns all flags, but leaves out the value of a noise seed."""
    recorded = dataclasses.asdict(self)
    recorded['noise_seed'] = None if self.noise_seed is None else 'given'
    return recorded

  def record(self, folder: pathlib.Path) -> None:
    """Writes hparams.json into the folder, which is made if need be."""
    # Population and seed of the cohorts are only for the owner.
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(self.to_json(), indent=2) + '\n'
    durable.write_durably(folder / HPARAMS_NAME, text.encode(), private=True)


def define_flags(cls: type, values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines a flag for each field of a class."""
  kinds = typing.get_type_hints(cls)
  for field in dataclasses.fields(cls):
    name, kind = field.metadata['name'] or field.name, kinds[field.name]
    text, choices = field.metadata['help'], field.metadata['choices']
    if choices:
      flags.DEFINE_enum(name, field.default, list(choices), text, flag_values=values)
    else:
      (plain,) = {*(typing.get_args(kind) or (kind,))} - {types.NoneType}
      _DEFINE[plain](name, field.default, text, flag_values=values)


def parsed_flags(cls: type, values: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
  """Returns the value of each field's flag, by the field."""
  fields = dataclasses.fields(cls)
  return {field.name: values[field.metadata['name'] or field.name].value for field in fields}


define_flags(Hparams)


def from_flags(values: flags.FlagValues = flags.FLAGS) -> Hparams:
  """Returns the hyperparameters that parsed flags give."""
  given = parsed_flags(Hparams, values)
  noise = [name for name in NOISE_FLAGS if given[name] is not None]
  if len(noise) > 1:
    texts = ' and '.join(f'--{name}={given[name]}' for name in noise)
    raise ValueError(f'{texts}: give one of them')
  return Hparams(**given)


def from_arguments(arguments: Sequence[str]) -> Hparams:
  """Returns the hyperparameters of a command line, without its first word.

  Raises:
    OSError: if a file of flags cannot be read.
    ValueError: for arguments that are no flags of a run, or have bad values.
  """
  values = flags.FlagValues()
  define_flags(Hparams, values)
  try:
    rest = values(['train', *flag_files.expand(arguments)])[1:]
  except flags.Error as error:
    raise ValueError(str(error)) from None
  if rest:
    raise ValueError(f'{messages.quoted(rest[0])} is not a flag; flags are --name=value')
  return from_flags(values)


def recorded(content: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the flags of an hparams.json, with the defaults of flags newer than it."""
  defaults = {field.name: field.default for field in dataclasses.fields(Hparams)}
  return {**defaults, **content}
