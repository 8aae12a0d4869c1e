"""Fine-tunes low-rank adapters of a transformers model, with one update of each person's text.

The model is a small Llama with random weights; `AutoModelForCausalLM.from_pretrained` gives others.
Of x·A·B, A is fixed and B learns. The same command resumes: python peft_adapters.py runs/peft
"""

import functools
import pathlib
import sys

import peft
import torch
import transformers

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters import peft as private

PEOPLE, COHORT, ROUNDS = 400, 20, 60
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)
MOMENTUM = 0.9


def tokens_of(person: int) -> torch.Tensor:
  draws = torch.Generator().manual_seed(person)  # Low tokens are the most frequent.
  return torch.multinomial(0.8 ** torch.arange(32.0), 24, replacement=True, generator=draws)[None]


def people_of(t: int) -> list[int]:
  return torch.randperm(PEOPLE, generator=torch.Generator().manual_seed(t)).tolist()


def batches_of(person: int) -> list[dict[str, torch.Tensor]]:
  return [{'input_ids': tokens_of(person), 'labels': tokens_of(person)}]


def adapted() -> torch.nn.Module:
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
  return model


@torch.no_grad()
def held_out_loss(model: torch.nn.Module) -> float:
  tokens = torch.cat([tokens_of(person) for person in range(10**6, 10**6 + 50)])
  return float(model(input_ids=tokens, labels=tokens).loss)


def main(folder: pathlib.Path) -> None:
  model = adapted()
  with dpftrl.PrivateAggregator(
    dpftrl.optimize('blt', SCHEMA, workload=dpftrl.Workload(momentum=MOMENTUM)),
    template=private.template(model),
    clip_norm=0.3,
    report_goal=COHORT,
    folder=folder,
    participation=SCHEMA,
    max_epsilon=8.0,
    delta=1e-6,
  ) as aggregator:
    sgd = functools.partial(torch.optim.SGD, lr=0.4, momentum=MOMENTUM)
    options = dict(cohort=COHORT, server=sgd)
    for _ in private.trained_rounds(model, aggregator, people_of, batches_of, **options):
      print(f'loss {held_out_loss(model):.3f}, {aggregator.privacy_loss()}')
  model.save_pretrained(folder / 'adapter')


if __name__ == '__main__':
  main(pathlib.Path(*sys.argv[1:] or ['runs/peft']))
