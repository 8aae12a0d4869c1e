"""Updates of people by a PEFT model, a tiny random Llama, and the loop that trains it."""

import functools
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.support.files import mark
from tests import made

adapter = pytest.importorskip('fl_dpftrl.adapters.peft', exc_type=ImportError)
torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')
peft = pytest.importorskip('peft')


def llama(dtype=torch.float32):
  torch.manual_seed(0)
  config = transformers.LlamaConfig(
    vocab_size=16,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    initializer_range=0.3,
  )
  lora = peft.LoraConfig(r=2, lora_alpha=2, target_modules=['q_proj', 'v_proj'])
  model = peft.get_peft_model(transformers.LlamaForCausalLM(config), lora).to(dtype)
  with torch.no_grad():
    for name, parameter in model.named_parameters():
      if 'lora_B' in name:
        parameter.normal_(std=0.1)
  return model


def batches(person, count=2):
  draws = torch.Generator().manual_seed(person)
  rows = torch.randint(0, 16, (count, 2, 9), generator=draws)
  return [{'input_ids': row, 'labels': row} for row in rows]


def state(model):
  return {name: p.detach().clone() for name, p in model.named_parameters()}


def gradient(model, batch):
  parameters = adapter.learning(model)
  loss = model(**batch).loss
  return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))


def test_one_step_is_the_gradient_and_the_model_stays():
  model, (first, second) = llama(), batches(1)
  frozen = state(model)
  update = adapter.update_of(model, [first, second], learning_rate=0.5, accumulation=2)
  gradients = gradient(model, first), gradient(model, second)
  assert set(update) == {name for name in frozen if 'lora' in name} == set(adapter.template(model))
  for name, change in update.items():
    expected = -0.25 * (gradients[0][name] + gradients[1][name])
    torch.testing.assert_close(change, expected, rtol=1e-4, atol=1e-7)
  assert all(torch.equal(p, frozen[name]) for name, p in model.named_parameters())


def test_several_epochs_are_the_steps_of_torchs_descent():
  model, three = llama(), batches(2, 3)
  update = adapter.update_of(model, three, learning_rate=0.3, local_epochs=2, accumulation=2)
  other, before = llama(), state(llama())
  descent = torch.optim.SGD(adapter.learning(other).values(), lr=0.3)
  for group in (three[:2], three[2:]) * 2:
    descent.zero_grad()
    for batch in group:
      (other(**batch).loss / len(group)).backward()
    descent.step()
  for name, parameter in adapter.learning(other).items():
    torch.testing.assert_close(
      update[name], parameter.detach() - before[name], rtol=1e-3, atol=1e-6
    )


@made.cases(
  'use_reentrant, dtype', (False, torch.float32), (True, torch.float32), (True, torch.bfloat16)
)
def test_layers_that_are_computed_again_have_the_parameters_of_their_step(use_reentrant, dtype):
  options = dict(learning_rate=0.3, local_epochs=3, accumulation=2)
  expected = adapter.update_of(llama(dtype), batches(2, 3), **options)
  model = llama(dtype).train()
  model.enable_input_require_grads()
  model.gradient_checkpointing_enable({'use_reentrant': use_reentrant})
  update = adapter.update_of(model, batches(2, 3), **options)
  assert all(torch.equal(change, expected[name]) for name, change in update.items())
  assert all(parameter.grad is None for parameter in model.parameters())


def test_frozen_parameters_have_no_update():
  model = llama()
  for name, parameter in model.named_parameters():
    parameter.requires_grad_('lora_B' in name and 'v_proj' in name)
  update = adapter.update_of(model, batches(1))
  assert len(update) == 2 and all('v_proj.lora_B' in name for name in update)


def test_a_model_in_bfloat16_has_updates_in_float32_that_small_steps_add_up_in():
  """Of steps that bfloat16 rounds away, none would be left."""
  model, person = llama(torch.bfloat16), batches(1, 1)
  stored = state(model)
  once = adapter.update_of(model, person, learning_rate=1e-5)
  often = adapter.update_of(model, person, learning_rate=1e-5, local_epochs=10)
  for name, change in often.items():
    assert change.dtype == torch.float32 and stored[name].dtype == torch.bfloat16
    torch.testing.assert_close(change, 10 * once[name], rtol=0.2, atol=1e-6)
  assert sum(float(change.norm()) for change in often.values()) > 1e-5
  assert all(torch.equal(p, stored[name]) for name, p in model.named_parameters())


def test_each_matrix_is_clipped_and_all_together_to_the_joint_norm(tmp_path):
  model = llama()
  plain = adapter.update_of(model, batches(1))
  norms = {name: float(change.norm()) for name, change in plain.items()}
  bounds = {name: norm * (0.5 if i % 2 else 2.0) for i, (name, norm) in enumerate(norms.items())}
  update = adapter.update_of(model, batches(1), clip_norms=bounds)
  for name, change in update.items():
    factor = min(1.0, bounds[name] / norms[name])
    torch.testing.assert_close(change, factor * plain[name], rtol=1e-5, atol=1e-9)
  joint = math.hypot(*bounds.values())
  assert math.hypot(*(float(change.norm()) for change in update.values())) <= joint
  options = dict(template=adapter.template(model), noise_multiplier=0.0, clip_norm=joint)
  with made.aggregator(tmp_path / 'run', **options) as aggregator:
    with aggregator.round(['ann', 'bob'], at_least=1) as round_:
      assert round_.add(update) == 'kept'


def test_a_person_without_text_has_an_update_of_zeros():
  assert not any(change.any() for change in adapter.update_of(llama(), []).values())


@made.cases(
  'changes, message',
  (dict(learning_rate=0.0), 'learning_rate'),
  (dict(local_epochs=0), 'local_epochs'),
  (dict(accumulation=0), 'accumulation'),
  (dict(clip_norms={'lora': 1.0}), 'clip_norms must have a number for each of base_model'),
  (dict(clip_norms=dict.fromkeys(adapter.template(llama()), -1.0)), r'clip_norms\[base_model'),
)
def test_arguments_out_of_range_are_named(changes, message):
  with pytest.raises(ValueError, match=message):
    adapter.update_of(llama(), batches(1), **changes)


def test_models_that_are_not_of_peft_or_learn_nothing_are_refused():
  with pytest.raises(ValueError, match='must be a PeftModel'):
    adapter.update_of(torch.nn.Linear(2, 2), [])
  model = llama().requires_grad_(False)
  with pytest.raises(ValueError, match='no parameter that requires gradients'):
    adapter.template(model)


def test_a_model_that_keeps_statistics_of_text_is_refused():
  model = llama()
  model.base_model.model.model.norm = torch.nn.BatchNorm1d(16)
  with pytest.raises(ValueError, match='running statistics'):
    adapter.template(model)


ADAM = functools.partial(torch.optim.Adam, lr=0.01)


def trained(folder, kill_at=None, dtype=torch.float32, model=None, server=ADAM):
  """Trains 4 rounds of 3 people without noise, by Adam; returns the model's parameters."""
  model, schema = model or llama(dtype), dpftrl.MinSep(num_rounds=4, min_sep=2)
  options = dict(
    template=adapter.template(llama()), participation=schema, report_goal=3, delta=1e-6
  )
  with dpftrl.PrivateAggregator(
    'identity', noise_multiplier=0.0, clip_norm=9.0, folder=folder, **options
  ) as aggregator:
    options = dict(cohort=3, server=server, local_epochs=2)
    people_of = lambda t: range(t, 40)
    for t in adapter.trained_rounds(model, aggregator, people_of, batches, **options):
      if t + 1 == kill_at:
        raise KeyboardInterrupt
    assert aggregator.statement().min_sep >= 2
  return state(model)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_training_lowers_the_loss_and_goes_on_to_the_same_bits(tmp_path, dtype):
  whole = trained(tmp_path / 'whole', dtype=dtype)
  for kill_at in (1, 3):
    with pytest.raises(KeyboardInterrupt):
      trained(tmp_path / 'again', kill_at, dtype)
  again = trained(tmp_path / 'again', dtype=dtype)
  assert all(torch.equal(value, again[name]) for name, value in whole.items())
  first = state(llama(dtype))
  changed = {name for name, value in whole.items() if not torch.equal(value, first[name])}
  assert changed == set(adapter.template(llama(dtype)))
  assert (tmp_path / 'again' / 'model.pt').stat().st_mode & 0o077 == 0
  (tmp_path / 'again' / 'model.pt').unlink()
  with pytest.raises(mark.LostStateError, match='has 4 rounds'):
    trained(tmp_path / 'again', dtype=dtype)


def test_a_state_goes_to_the_models_device_and_only_into_the_same_parameters(tmp_path):
  with pytest.raises(KeyboardInterrupt):
    trained(tmp_path / 'run', kill_at=1)
  fewer, devices = llama(), set()
  fewer.get_parameter(next(iter(adapter.template(fewer)))).requires_grad_(False)
  with pytest.raises(ValueError, match='model has other parameters that require gradients than'):
    trained(tmp_path / 'run', model=fewer)

  def server(parameters):
    devices.update(parameter.device.type for parameter in parameters)
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    trained(tmp_path / 'run', model=llama().to('meta'), server=server)
  assert devices == {'meta'}


def test_a_round_steps_by_the_mean_of_the_people(tmp_path):
  model, options = llama(), dict(noise_multiplier=0.0, clip_norm=9.0, report_goal=2)
  before = state(model)
  updates = [adapter.update_of(model, batches(i), learning_rate=0.1) for i in (5, 6)]
  with made.aggregator(tmp_path / 'run', template=adapter.template(model), **options) as aggregator:
    server = functools.partial(torch.optim.SGD, lr=3.0)
    options = dict(cohort=2, server=server, learning_rate=0.1)
    rounds = adapter.trained_rounds(model, aggregator, lambda t: [5, 6, 7], batches, **options)
    assert next(rounds) == 0
  for name, parameter in adapter.learning(model).items():
    expected = before[name] + 1.5 * (updates[0][name] + updates[1][name])
    np.testing.assert_allclose(parameter.detach(), expected, rtol=1e-3, atol=1e-4)
