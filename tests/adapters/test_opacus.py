"""The optimiser for Opacus: its sums, its noise, and its ε beside Opacus's own."""

import inspect

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import sampling

adapter = pytest.importorskip('fl_dpftrl.adapters.opacus', exc_type=ImportError)
torch = pytest.importorskip('torch')

IN, OUT = 6, 4


def prepared(folder, *, batch, reduction='mean', **arguments):
  from opacus.grad_sample import GradSampleModule

  torch.manual_seed(3)
  model = GradSampleModule(torch.nn.Linear(IN, OUT), loss_reduction=reduction)
  aggregator = dpftrl.PrivateAggregator(
    dpftrl.Identity(),
    template=list(model.parameters()),
    report_goal=batch,
    folder=folder,
    **dict(noise_multiplier=0.0, clip_norm=0.5) | arguments,
  )
  optimizer = adapter.CorrelatedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1.0), aggregator, loss_reduction=reduction
  )
  return model, optimizer, aggregator


def loss(model, x, y, reduction='mean'):
  return torch.nn.functional.cross_entropy(model(x), y, reduction=reduction)


def batch_of(count, seed=0):
  rng = torch.Generator().manual_seed(seed)
  return torch.randn(count, IN, generator=rng), torch.randint(OUT, (count,), generator=rng)


@pytest.mark.parametrize('reduction', ['mean', 'sum'])
def test_gradients_are_those_of_opacus_without_noise(reduction, tmp_path):
  from opacus.grad_sample import GradSampleModule
  from opacus.optimizers import DPOptimizer

  x, y = batch_of(32)
  model, optimizer, aggregator = prepared(tmp_path, batch=32, reduction=reduction)
  torch.manual_seed(3)
  their_model = GradSampleModule(torch.nn.Linear(IN, OUT), loss_reduction=reduction)
  theirs = DPOptimizer(
    torch.optim.SGD(their_model.parameters(), lr=1.0),
    noise_multiplier=0.0,
    max_grad_norm=0.5,
    expected_batch_size=32,
    loss_reduction=reduction,
  )
  loss(their_model, x, y, reduction).backward()
  theirs.step()
  with aggregator:
    optimizer.begin(range(32))
    for part in (slice(0, 20), slice(20, 32)):  # A batch in parts.
      optimizer.signal_skip_step(part.start == 0)
      share = loss(model, x[part], y[part], reduction)
      share.backward()
      optimizer.step()
      optimizer.zero_grad()
    assert aggregator.next_round == 1
  for own, their in zip(model.parameters(), their_model.parameters()):
    np.testing.assert_allclose(own.detach(), their.detach(), atol=1e-4)
  assert float(their_model._module.weight.grad.abs().max()) > 1e-2


def noise_of(folder, multiplier, count):
  """Returns gradients of no examples: noise alone, divided by the batch size."""
  model, optimizer, aggregator = prepared(
    folder,
    batch=2,
    noise_multiplier=multiplier,
    noise_seed=4,
    participation=sampling.CyclicPoisson(num_rounds=1000, num_examples=10, batch_size=2),
  )
  values = []
  with aggregator:
    for _ in range(count):
      optimizer.begin([])
      loss(model, *batch_of(0), 'sum').backward()
      optimizer.step()
      values += [p.grad.flatten().numpy().copy() for p in model.parameters()]
      optimizer.zero_grad()
  return np.concatenate(values)


def test_the_noise_has_the_distribution_of_opacus(tmp_path):
  from opacus.optimizers.optimizer import _generate_noise

  ours = noise_of(tmp_path, 2.0, 150)
  torch.manual_seed(0)
  theirs = _generate_noise(2.0 * 0.5, torch.zeros(ours.size)).numpy() / 2
  test = lambda a, b: stats.ks_2samp(a, b).pvalue
  assert test(ours, theirs) > 1e-4 and test(theirs, ours) > 1e-4
  for factor in (2 / 3, 1.5):
    assert test(ours, factor * theirs) < 1e-6 and test(factor * ours, theirs) < 1e-6


@pytest.mark.parametrize(
  'rate, multiplier, steps, delta', [(0.01, 1.0, 1000, 1e-5), (0.05, 2.0, 500, 1e-6)]
)
def test_epsilon_of_independent_noise_is_that_of_opacus(rate, multiplier, steps, delta):
  from opacus.accountants import PRVAccountant, RDPAccountant

  scheme = sampling.CyclicPoisson(
    num_rounds=steps, num_examples=20_000, batch_size=rate * 20_000, num_parts=1
  )
  ours = accountant.account(
    dpftrl.Identity(), scheme, noise_multiplier=multiplier, delta=delta
  ).epsilon()
  theirs = PRVAccountant(), RDPAccountant()
  for each in theirs:
    each.history = [(multiplier, rate, steps)]
  prv, rdp = (each.get_epsilon(delta=delta) for each in theirs)
  # Opacus's first adds the bound on its error, 0.01; its second is known to be loose.
  assert 0.0 < prv - ours < 0.02 and prv < rdp < 1.3 * ours


def test_steps_without_a_batch_and_gradients_twice_are_refused(tmp_path):
  x, y = batch_of(4)
  model, optimizer, aggregator = prepared(tmp_path, batch=4)
  with aggregator:
    loss(model, x, y).backward()
    with pytest.raises(ValueError, match='call begin'):
      optimizer.step()
    optimizer.begin(range(4))
    with pytest.raises(ValueError, match='not initialized'):  # Gradients of another batch.
      optimizer.step()
    loss(model, x, y).backward()
    optimizer.signal_skip_step()
    optimizer.step()
    with pytest.raises(ValueError, match='not initialized'):  # Added before.
      optimizer.step()
    optimizer.begin(range(4, 8))  # The batch before it had no step, and is used up.
    loss(model, *batch_of(5)).backward()
    with pytest.raises(ValueError, match='has 4 devices, each with one update; got 5'):
      optimizer.step()
    optimizer.begin(range(4))
    optimizer.noise_multiplier = 7.0
    loss(model, x, y).backward()
    with pytest.raises(ValueError, match='the aggregator’s, and stay'):
      optimizer.step()
    assert aggregator.next_round == 3


def made(folder, epochs=2, **changes):
  torch.manual_seed(0)
  model = torch.nn.Linear(IN, OUT)
  loader = torch.utils.data.DataLoader(list(zip(*batch_of(22))), batch_size=5)
  arguments = dict(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=loader,
    epochs=epochs,
    strategy='blt-b100',
    max_grad_norm=1.0,
    epsilon=8.0,
    delta=1e-5,
    folder=folder,
  )
  return adapter.make_private(**arguments | changes)


def steps(model, optimizer, loader, limit=None):
  count = 0
  for x, y in loader:
    loss(model, x, y).backward()
    optimizer.step()
    count += 1
    if count == limit:
      break
  return count


def test_make_private_goes_on_with_the_next_batch_and_keeps_epsilon(tmp_path):
  model, optimizer, loader = made(tmp_path)
  assert len(loader) == 4 and steps(model, optimizer, loader, limit=3) == 3
  optimizer.aggregator.close()
  model, optimizer, loader = made(tmp_path)
  passes = [steps(model, optimizer, loader) for _ in range(3)]
  assert passes == [1, 4, 0]
  optimizer.aggregator.close()
  run = dpftrl.open_run(tmp_path / 'participation.parquet', tmp_path / 'strategy.json')
  statement = dpftrl.replay(run, delta=1e-5)
  assert statement.min_sep == 4 and statement.num_rounds == 8 and statement.declared.holds
  assert 7.9 < statement.worst_case.epsilon() <= 8.0


def test_the_target_is_that_of_metrics_too(tmp_path):
  metrics = {f'm{i:03}': 1.0 for i in range(900)}
  _, optimizer, _ = made(tmp_path, metrics=metrics)
  aggregator = optimizer.aggregator
  claim = aggregator.guard.claim
  assert claim.arithmetic.num_coordinates == IN * OUT + OUT + 900
  assert claim.guarantee(aggregator.participation, 1e-5).epsilon() <= 8.0


def test_examples_of_the_loader_are_those_of_the_log(tmp_path):
  numbers = torch.arange(22)
  loader = torch.utils.data.DataLoader(numbers, batch_size=5)
  _, optimizer, loader = made(tmp_path, data_loader=loader)
  for batch in loader:
    assert batch.tolist() == optimizer.round.device_ids.tolist()


def test_loaders_and_layers_without_a_guarantee_are_refused(tmp_path):
  data = torch.utils.data

  class Endless(data.IterableDataset):
    def __iter__(self):
      return iter(range(22))

  class Own(data.DataLoader):
    pass

  part, random = data.SubsetRandomSampler(range(10)), data.RandomSampler
  batches = data.BatchSampler(range(22), 5, False)
  for words, loader in (
    ('sampler of its own', data.DataLoader(range(22), batch_size=5, sampler=part)),
    ('sampler with replacement', data.DataLoader(range(22), 5, sampler=random(range(22), True))),
    ('sampler of its own', data.DataLoader(range(22), 5, sampler=random(range(9)))),
    ('no batch_sampler', data.DataLoader(range(22), batch_sampler=batches)),
    ('no batch_sampler', data.DataLoader(range(22), batch_size=None)),
    ('len\\(\\) and indices', data.DataLoader(Endless(), batch_size=5)),
    ('got a Own', Own(range(22), batch_size=5)),
    ('in_order=True', data.DataLoader(range(22), batch_size=5, in_order=False)),
    ('batch_size=23 is more than 22', data.DataLoader(range(22), batch_size=23)),
  ):
    with pytest.raises(ValueError, match='batches of all examples.*' + words) as raised:
      made(tmp_path, data_loader=loader)
    assert len(str(raised.value)) <= 300 and '\n' not in str(raised.value)
  with pytest.raises(ValueError, match='parameters of module'):
    made(tmp_path, module=torch.nn.Linear(IN, OUT))
  from opacus.validators.errors import UnsupportedModuleError

  mixed = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.BatchNorm1d(OUT))
  optimizer = torch.optim.SGD(mixed.parameters(), lr=0.1)
  with pytest.raises(UnsupportedModuleError):
    made(tmp_path, module=mixed, optimizer=optimizer)
  assert not list(tmp_path.iterdir())


def started(worker):
  pass


def test_what_a_loader_does_beside_its_batches_stays(tmp_path):
  options = dict(
    num_workers=1, timeout=30.0, worker_init_fn=started, multiprocessing_context='spawn',
    generator=torch.Generator(), prefetch_factor=3, persistent_workers=True,
    collate_fn=torch.utils.data.default_convert, pin_memory=False,
  )  # fmt: skip
  given = torch.utils.data.DataLoader(torch.arange(22), batch_size=5, **options)
  _, optimizer, loader = made(tmp_path, data_loader=given)
  optimizer.aggregator.close()
  for name in {*inspect.signature(torch.utils.data.DataLoader).parameters} - {
    *('dataset', 'batch_size', 'shuffle', 'sampler', 'batch_sampler', 'drop_last')
  }:
    assert getattr(loader, name) is getattr(given, name), name


@pytest.mark.slow
def test_workers_that_are_spawned_give_the_examples_of_the_log(tmp_path):
  given = torch.utils.data.DataLoader(
    torch.arange(22), batch_size=5, num_workers=2, multiprocessing_context='spawn'
  )
  _, optimizer, loader = made(tmp_path, data_loader=given)
  with optimizer.aggregator:
    assert [batch.tolist() == optimizer.round.device_ids.tolist() for batch in loader] == 4 * [True]


def test_gradients_of_autocast_are_added_in_the_type_of_the_parameters(tmp_path):
  x, y = batch_of(4)
  model, optimizer, aggregator = prepared(tmp_path, batch=4)
  before = [p.detach().clone() for p in model.parameters()]
  with aggregator:
    optimizer.begin(range(4))
    with torch.autocast('cpu', dtype=torch.bfloat16):
      share = loss(model, x, y)
    share.backward()
    assert any(p.grad_sample.dtype == torch.bfloat16 for p in model.parameters())
    optimizer.step()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
  assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_batch_memory_manager_is_refused_by_a_line_that_says_what_to_do(tmp_path):
  from opacus.utils import batch_memory_manager

  model, optimizer, loader = made(tmp_path)
  manager = batch_memory_manager.BatchMemoryManager(
    data_loader=loader, max_physical_batch_size=2, optimizer=optimizer
  )
  with optimizer.aggregator, manager as parts:
    with pytest.raises(
      ValueError, match='BatchMemoryManager does neither: cut the batch'
    ) as raised:
      steps(model, optimizer, parts)
    assert optimizer.aggregator.next_round == 0 and len(str(raised.value)) <= 300


def test_metrics_and_clip_norms_are_those_of_the_batch(tmp_path):
  rule = dpftrl.AdaptiveClipping(0.5)
  options = dict(metrics={'loss': 8.0}, clip_norm=rule)
  model, optimizer, aggregator = prepared(tmp_path, batch=4, **options)
  for seed in range(2):
    x, y = batch_of(4, seed)
    optimizer.begin(range(4 * seed, 4 * seed + 4))
    assert optimizer.max_grad_norm == aggregator.clip_norm
    optimizer.zero_grad()
    loss(model, x, y).backward()
    optimizer.metrics = {'loss': np.array([1.0, 2.0, 3.0, 90.0])}
    optimizer.step()
  assert optimizer.metrics is None and aggregator.clip_norm != 0.5
  assert aggregator.metrics()['loss'].value == pytest.approx(3.5, abs=1e-4)
  aggregator.close()
