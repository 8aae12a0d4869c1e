"""Federated averaging of a PyTorch model with BLT noise, a budget, and a log that proves ε.

    python examples/pytorch_loop.py runs/pytorch

Interrupt it and start it again: it goes on with the next round. Each of 400 devices holds 32 points
of its own part of the plane, and a small network learns which of three classes they are of.
"""

import copy
import pathlib
import sys

import torch

import fl_dpftrl as dpftrl

DEVICES, COHORT, ROUNDS = 400, 20, 60
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)


def examples_of(device: int) -> tuple[torch.Tensor, torch.Tensor]:
  draws = torch.Generator().manual_seed(device)
  points = torch.randn(32, 2, generator=draws) + torch.randn(2, generator=draws)
  return points, (points.norm(dim=1) > 1.0).long() + (points[:, 0] > 1.5).long()


def update_of(device: int, model: torch.nn.Module) -> dict[str, torch.Tensor]:
  """Returns what one device sends: the change of its copy of the model by its own examples."""
  own, (points, classes) = copy.deepcopy(model), examples_of(device)
  optimizer = torch.optim.SGD(own.parameters(), lr=0.2)
  for part in range(0, 32, 8):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(own(points[part : part + 8]), classes[part : part + 8])
    loss.backward()
    optimizer.step()
  before = dict(model.named_parameters())
  return {name: (now - before[name]).detach() for name, now in own.named_parameters()}


def accuracy(model: torch.nn.Module) -> float:
  tests = [examples_of(device) for device in range(10**6, 10**6 + 100)]
  points, classes = (torch.cat(part) for part in zip(*tests))
  return float((model(points).argmax(dim=1) == classes).float().mean())


def main(folder: pathlib.Path) -> None:
  torch.manual_seed(0)
  model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
  server = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
  stored = folder / 'model.pt'
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=dict(model.named_parameters()),
    noise_multiplier=2.0,
    clip_norm=0.3,
    report_goal=COHORT,
    folder=folder,
    participation=SCHEMA,
    max_epsilon=20.0,
    delta=1e-6,
  ) as aggregator:
    if not stored.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      torch.save({'model': model.state_dict(), 'server': server.state_dict()}, stored)
    else:
      state = torch.load(stored)
      model.load_state_dict(state['model'])
      server.load_state_dict(state['server'])
    while aggregator.next_round < aggregator.max_rounds:
      draws = torch.Generator().manual_seed(aggregator.next_round)
      cohort = aggregator.admissible(
        torch.randperm(DEVICES, generator=draws).tolist(), at_most=COHORT
      )
      with aggregator.round(cohort) as round_:
        for device in cohort:
          round_.add(update_of(int(device), model))
      for name, parameter in model.named_parameters():
        parameter.grad = -round_.mean[name]
      server.step()
      state = {'model': model.state_dict(), 'server': server.state_dict()}
      torch.save(state, folder / 'new.pt')
      (folder / 'new.pt').replace(stored)  # Whole or not at all.
      if aggregator.next_round % 10 == 0:
        print(
          f'round {aggregator.next_round}: accuracy {100 * accuracy(model):.1f} %,'
          f' {aggregator.privacy_loss()}'
        )
    aggregator.report(folder / 'privacy.html')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/pytorch'))
