"""Fine-tunes low-rank adapters of a transformers model, with one update of each person's text.

The model is a small Llama with random weights; `AutoModelForCausalLM.from_pretrained` gives others.
Of x·A·B, A is fixed and B learns. The same command resumes: python peft_adapters.py runs/peft
"""

import pathlib
import sys

import peft
import torch
import transformers

import fl_dpftrl as dpftrl

PEOPLE, COHORT, ROUNDS = 400, 20, 60
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)
MOMENTUM = 0.9


def tokens_of(person: int) -> torch.Tensor:
  draws = torch.Generator().manual_seed(person)  # Low tokens are the most frequent.
  return torch.multinomial(0.8 ** torch.arange(32.0), 24, replacement=True, generator=draws)[None]


def adapted() -> tuple[torch.nn.Module, dict[str, torch.nn.Parameter]]:
  torch.manual_seed(0)
  config = transformers.LlamaConfig(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    initializer_range=0.3,
  )
  adapters = peft.LoraConfig(r=4, lora_alpha=4, target_modules=['v_proj'])
  model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapters)
  for name, parameter in model.named_parameters():
    parameter.requires_grad_('lora_B' in name)
  return model, {name: p for name, p in model.named_parameters() if p.requires_grad}


def update_of(person: int, model: torch.nn.Module, learning: dict) -> dict[str, torch.Tensor]:
  loss = model(input_ids=tokens_of(person), labels=tokens_of(person)).loss
  gradients = torch.autograd.grad(loss, list(learning.values()))
  return {name: -gradient for name, gradient in zip(learning, gradients)}


@torch.no_grad()
def held_out_loss(model: torch.nn.Module) -> float:
  tokens = torch.cat([tokens_of(person) for person in range(10**6, 10**6 + 50)])
  return float(model(input_ids=tokens, labels=tokens).loss)


def main(folder: pathlib.Path) -> None:
  (model, learning), stored = adapted(), folder / 'model.pt'
  server = torch.optim.SGD(learning.values(), lr=0.4, momentum=MOMENTUM)
  workload = dpftrl.Workload(momentum=MOMENTUM)
  with dpftrl.PrivateAggregator(
    dpftrl.optimize('blt', SCHEMA, workload=workload),
    template=learning,
    clip_norm=0.3,
    report_goal=COHORT,
    folder=folder,
    participation=SCHEMA,
    max_epsilon=8.0,
    delta=1e-6,
  ) as aggregator:
    if not stored.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      torch.save([learning, server.state_dict()], stored)
    values, state = torch.load(stored)
    model.load_state_dict(values, strict=False)
    server.load_state_dict(state)
    while (t := aggregator.next_round) < aggregator.max_rounds:
      people = torch.randperm(PEOPLE, generator=torch.Generator().manual_seed(t)).tolist()
      cohort = aggregator.admissible(people, at_most=COHORT)
      with aggregator.round(cohort) as round_:
        for person in cohort:
          round_.add(update_of(int(person), model, learning))
      for name, parameter in learning.items():
        parameter.grad = -round_.mean[name]
      server.step()
      torch.save([learning, server.state_dict()], folder / 'new.pt')
      (folder / 'new.pt').replace(stored)  # Whole or not at all.
      print(f'loss {held_out_loss(model):.3f}, {aggregator.privacy_loss()}')


if __name__ == '__main__':
  main(pathlib.Path(*sys.argv[1:] or ['runs/peft']))
