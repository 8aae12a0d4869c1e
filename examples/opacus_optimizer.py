"""Opacus with correlated noise: training in one place, with a log of batches that proves ε.

    python examples/opacus_optimizer.py runs/opacus

Interrupt it and start it again: it goes on with the next batch. A network learns ten classes of
20,000 examples, in three passes of 100 fixed batches each.

Opacus's GradSampleModule makes a gradient of each example. `CorrelatedOptimizer` hands them to a
`PrivateAggregator` in place of clipping and adding them in float32. What is protected is an
example: neighbouring runs differ in that its gradients are zeros. With a schema, as here, that is
the guarantee of the bits. Batches that are drawn in secret need less noise: give the aggregator
`sampling`, and take batches from it as in central.py; the guarantee is then that of real numbers.
Opacus's accountants and its PrivacyEngine know nothing of correlated noise: use neither.
"""

import itertools
import pathlib
import sys
from collections.abc import Sequence

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer

import fl_dpftrl as dpftrl

EXAMPLES, BATCH, PASSES, EPSILON, DELTA = 20_000, 200, 3, 8.0, 1e-5
SIZE, HIDDEN, CLASSES = 32, 32, 10


class CorrelatedOptimizer(DPOptimizer):
  """An optimiser of Opacus whose noise is correlated over steps.

      optimizer.begin(example_ids)           # in the order of the batch
      criterion(model(x), y).backward()
      optimizer.step()
      optimizer.zero_grad()

  A batch may come in parts, by Opacus's BatchMemoryManager or `signal_skip_step`.

  Args:
    optimizer: any optimiser of PyTorch.
    aggregator: its template is the list of the optimiser's parameters. Noise multiplier, clip norm
      and expected batch size are its own: the last is its report goal.
    loss_reduction: 'mean' or 'sum', as the loss and GradSampleModule have it.
  """

  def __init__(
    self,
    optimizer: torch.optim.Optimizer,
    aggregator: dpftrl.PrivateAggregator,
    *,
    loss_reduction: str = 'mean',
  ):
    super().__init__(
      optimizer,
      noise_multiplier=aggregator.noise_multiplier,
      max_grad_norm=aggregator.clip_norm,
      expected_batch_size=aggregator.report_goal,
      loss_reduction=loss_reduction,
    )
    self.aggregator, self.round, self._ids = aggregator, None, iter(())

  def begin(self, example_ids: Sequence[str | int]) -> None:
    """Records the examples of the next step durably, before their gradients are added."""
    self.round = self.aggregator.round(example_ids).begin()
    self._ids = iter(self.round.device_ids.tolist())

  def clip_and_accumulate(self) -> None:
    """Adds each example's gradient to the round, bounded in whole numbers."""
    if self.round is None:
      raise ValueError('step() needs a batch: call begin(example_ids) before it')
    for p in self.params:
      parts = p.grad_sample if isinstance(p.grad_sample, list) else [p.grad_sample]
      if any(getattr(part, '_processed', False) for part in parts):
        raise ValueError('these gradients were in a step before: call zero_grad() after each')
      for part in parts:
        part._processed = True
    each = [samples.detach().cpu().numpy() for samples in self.grad_samples]
    for gradients in zip(*each):
      self.round.add(list(gradients), device_id=next(self._ids, None))

  def add_noise(self) -> None:
    """Ends the round: gradients are its sum with a row of noise."""
    own = self.aggregator
    if (self.noise_multiplier, self.max_grad_norm) != (own.noise_multiplier, own.clip_norm):
      raise ValueError('noise_multiplier and max_grad_norm are the aggregator’s, and stay')
    round_, self.round = self.round, None
    round_.end()
    for p, mean in zip(self.params, round_.mean):
      p.grad = torch.as_tensor(mean).to(p) * self.expected_batch_size


CENTRES = 1.2 * torch.randn(CLASSES, SIZE, generator=torch.Generator().manual_seed(0))


def examples(seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
  draws = torch.Generator().manual_seed(seed)
  classes = torch.randint(CLASSES, (count,), generator=draws)
  return CENTRES[classes] + 2.0 * torch.randn(count, SIZE, generator=draws), classes


def main(folder: pathlib.Path) -> None:
  (points, classes), (x_test, test_classes) = examples(1, EXAMPLES), examples(2, 5000)
  num_batches = EXAMPLES // BATCH
  schema = dpftrl.MinSep(num_rounds=PASSES * num_batches, min_sep=num_batches)
  strategy = dpftrl.load_strategy('blt-b100')
  planned = dpftrl.calibrate(strategy, schema, epsilon=EPSILON, delta=DELTA, num_coordinates=10**6)
  torch.manual_seed(0)
  model = GradSampleModule(
    torch.nn.Sequential(
      torch.nn.Linear(SIZE, HIDDEN), torch.nn.Tanh(), torch.nn.Linear(HIDDEN, CLASSES)
    )
  )
  stored = folder / 'model.pt'
  with dpftrl.PrivateAggregator(
    strategy,
    template=list(model.parameters()),
    noise_multiplier=planned.noise_multiplier,
    clip_norm=1.0,
    report_goal=BATCH,
    folder=folder,
    schema=schema,
    delta=DELTA,
  ) as aggregator:
    optimizer = CorrelatedOptimizer(
      torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), aggregator
    )
    if stored.exists():
      state = torch.load(stored)
      model.load_state_dict(state['model'])
      optimizer.load_state_dict(state['optimizer'])
    for step in itertools.count(aggregator.next_round):
      if step >= aggregator.max_rounds:
        break
      batch = torch.arange(BATCH) + step % num_batches * BATCH
      optimizer.begin(batch.tolist())
      torch.nn.functional.cross_entropy(model(points[batch]), classes[batch]).backward()
      optimizer.step()
      optimizer.zero_grad()
      state = {'model': model.state_dict(), 'optimizer': optimizer.state_dict()}
      torch.save(state, folder / 'new.pt')
      (folder / 'new.pt').replace(stored)  # Whole or not at all.
      if aggregator.next_round % 50 == 0:
        with torch.no_grad():
          right = (model._module(x_test).argmax(dim=1) == test_classes).float().mean()
        print(
          f'step {aggregator.next_round}: accuracy {100 * right:.1f} %, {aggregator.privacy_loss()}'
        )
    aggregator.report(folder / 'privacy.html')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/opacus'))
