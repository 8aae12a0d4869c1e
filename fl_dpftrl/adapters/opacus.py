"""Opacus with correlated noise: a call like `PrivacyEngine.make_private`, and a log that proves ε.

A `PrivateAggregator` bounds and adds Opacus's gradients of examples, each of which is protected.
Opacus's accountants and PrivacyEngine know nothing of correlated noise: use neither.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from fl_dpftrl import adapters
from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.run import private_aggregator, release

with adapters.peer('Opacus', 'opacus'):
  import torch
  from opacus.grad_sample import GradSampleModule
  from opacus.optimizers import DPOptimizer
  from opacus.validators import ModuleValidator
  from torch.utils import data

# Arguments of a loader that choose the batches; all others stay as they are.
_CHOOSING = ('dataset', 'batch_size', 'shuffle', 'sampler', 'batch_sampler', 'drop_last')
_BATCHES = (
  'data_loader must be a DataLoader that gives batches of all examples, each once and in order:'
)


class CorrelatedOptimizer(DPOptimizer):
  """An optimiser of Opacus whose noise is correlated over steps.

  Call `begin(example_ids)` before the gradients of a batch, as `make_private`'s loader does, then
  `step()`. A batch may come in parts, with `signal_skip_step`. `step` raises ValueError without a
  batch, and for more gradients than the batch has examples.

  Args:
    aggregator: its template is the list of the optimiser's parameters. Noise multiplier, clip norm
      and expected batch size, its report goal, are its own.
    loss_reduction: 'mean' or 'sum', as the loss and GradSampleModule have it.

  Attributes:
    metrics: name → a number for each example, set before `step`; see `PrivateAggregator`.
  """

  def __init__(
    self,
    optimizer: torch.optim.Optimizer,
    aggregator: private_aggregator.PrivateAggregator,
    loss_reduction: str = 'mean',
  ):
    super().__init__(
      optimizer,
      noise_multiplier=aggregator.noise_multiplier,
      max_grad_norm=aggregator.clip_norm,
      expected_batch_size=aggregator.report_goal,
      loss_reduction=loss_reduction,
    )
    self.aggregator = aggregator
    self.round: Any = None
    self.metrics: Any = None

  def begin(self, example_ids: Any) -> None:
    """Records a batch durably; one that had no step is used up, its gradients are forgotten."""
    if self.round is not None and self.round.is_open:
      self.round.fail()
    self._forget()
    self.max_grad_norm = self.aggregator.clip_norm
    self.round = self.aggregator.round(example_ids).begin()

  def _forget(self) -> None:
    for p in self.params:
      p.grad_sample = None

  def clip_and_accumulate(self) -> None:
    """Adds each example's gradient to the round, once."""
    if self.round is None:
      raise ValueError(
        "step() needs a batch: take it from make_private's loader, or call begin(example_ids)"
        ' before it. BatchMemoryManager does neither: cut the batch in the loop, and call'
        ' signal_skip_step(True) before each part, but False before the last'
      )
    # Autocast makes gradients of another type than the parameters.
    pairs = zip(self.params, self.grad_samples, strict=True)
    samples = [samples.detach().to(p.dtype).cpu().numpy() for p, samples in pairs]
    metrics, self.metrics = self.metrics, None
    self.round.add_batch(samples, metrics=metrics)
    self._forget()

  def add_noise(self) -> None:
    """Ends the round: gradients are its mean, or its sum, with a row of noise."""
    claimed = self.aggregator.noise_multiplier, self.aggregator.clip_norm
    if (self.noise_multiplier, self.max_grad_norm) != claimed:
      raise ValueError('noise_multiplier and max_grad_norm are the aggregator’s, and stay')
    round_, self.round = self.round, None
    round_.end()
    factor = 1 if self.loss_reduction == 'mean' else self.aggregator.report_goal
    for p, mean in zip(self.params, round_.mean):
      p.grad = torch.as_tensor(mean).to(p) * factor

  def scale_grad(self) -> None:
    """Does nothing: the mean is of the whole batch."""


class _Batches(list):
  """Fixed batches in one order; an iteration ends with the pass."""

  aggregator: private_aggregator.PrivateAggregator

  def __iter__(self) -> Iterator[list[int]]:
    first, size = self.aggregator.next_round, len(self)
    for t in range(first, min(self.aggregator.max_rounds, first - first % size + size)):
      yield self[t % size]


class _Loader(data.DataLoader):
  """Batches are in the log before they are handed out."""

  optimizer: CorrelatedOptimizer

  def __iter__(self) -> Iterator[Any]:
    for example_ids, batch in zip(self.batch_sampler, super().__iter__()):
      self.optimizer.begin(example_ids)
      yield batch


def make_private(
  *,
  module: torch.nn.Module,
  optimizer: torch.optim.Optimizer,
  data_loader: data.DataLoader,
  epochs: int,
  strategy: files.Given,
  max_grad_norm: float,
  epsilon: float,
  delta: float,
  loss_reduction: str = 'mean',
  **arguments: Any,
) -> tuple[GradSampleModule, CorrelatedOptimizer, data.DataLoader]:
  """Returns model, optimiser and loader, as `PrivacyEngine.make_private_with_epsilon` does.

  Each example is in one batch a pass, in one order for all passes. An iteration of the loader is a
  pass, or the rest of one after a restart. `optimizer.aggregator` has ε, the report, and the end.

  Args:
    epsilon, delta: target of all epochs; arguments: others of `PrivateAggregator`, such as folder.

  Raises:
    ValueError: for a loader that does not give batches of all examples, each once, or gives them
      in another way than a `DataLoader`; and for parameters that are not the module's.
    UnsupportedModuleError: for layers that mix examples.
  """
  trained = [p for group in optimizer.param_groups for p in group['params'] if p.requires_grad]
  if {*map(id, trained)} != {id(p) for p in module.parameters() if p.requires_grad}:
    raise ValueError('optimizer must have the parameters of module that require gradients')
  _check_loader(data_loader)
  count, size = len(data_loader.dataset), data_loader.batch_size
  ModuleValidator.validate(module, strict=True)
  order = np.random.default_rng(0).permutation(count)[: count // size * size]  # Public.
  batches = _Batches(order.reshape(-1, size).tolist())
  schema = separations.MinSep(num_rounds=epochs * len(batches), min_sep=len(batches))
  metrics = arguments.get('metrics')
  released = metrics and extra_coordinates.PrivateMetrics(metrics)
  coordinates = sum(p.numel() for p in trained) + release.num_extra(max_grad_norm, released)
  target = dict(epsilon=epsilon, delta=delta, num_coordinates=coordinates)
  noise_multiplier = accountant.calibrate(strategy, schema, **target).noise_multiplier
  batches.aggregator = private_aggregator.PrivateAggregator(
    strategy,
    template=trained,
    noise_multiplier=noise_multiplier,
    clip_norm=max_grad_norm,
    report_goal=size,
    participation=schema,
    delta=delta,
    **arguments,
  )
  names = set(inspect.signature(data.DataLoader).parameters).difference(_CHOOSING)
  extra = {name: getattr(data_loader, name) for name in names}
  loader = _Loader(data_loader.dataset, batch_sampler=batches, **extra)
  loader.optimizer = CorrelatedOptimizer(optimizer, batches.aggregator, loss_reduction)
  return GradSampleModule(module, loss_reduction=loss_reduction), loader.optimizer, loader


def _check_loader(loader: data.DataLoader) -> None:
  """Raises ValueError for a loader whose batches would not be those of `make_private`."""
  if type(loader) is not data.DataLoader:
    raise ValueError(f'{_BATCHES} got a {type(loader).__name__}')
  if isinstance(loader.dataset, data.IterableDataset) or not hasattr(loader.dataset, '__len__'):
    raise ValueError(f'{_BATCHES} its dataset must have len() and indices; see the class Dataset')
  count, sampler = len(loader.dataset), loader.sampler
  if loader.batch_size is None or type(loader.batch_sampler) is not data.BatchSampler:
    raise ValueError(f'{_BATCHES} give batch_size, and no batch_sampler')
  if type(sampler) not in (data.SequentialSampler, data.RandomSampler) or len(sampler) != count:
    raise ValueError(f'{_BATCHES} it has a sampler of its own')
  if getattr(sampler, 'replacement', False) or not getattr(loader, 'in_order', True):
    # The log would name the examples of other batches.
    raise ValueError(f'{_BATCHES} give in_order=True, and no sampler with replacement')
  if count < loader.batch_size:
    raise ValueError(f'{_BATCHES} batch_size={loader.batch_size} is more than {count} examples')
