"""Opacus with correlated noise, which resumes: python examples/opacus_optimizer.py runs/opacus"""

import pathlib
import sys

import torch

from fl_dpftrl.adapters.opacus import make_private

EXAMPLES, BATCH, EPOCHS = 20_000, 200, 3
CENTRES = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))


def main(folder: pathlib.Path) -> None:
  torch.manual_seed(0)
  classes = torch.randint(10, (EXAMPLES,))
  points = 1.2 * CENTRES[classes] + 2.0 * torch.randn(EXAMPLES, 32)
  model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))
  model, optimizer, loader = make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9),
    data_loader=torch.utils.data.DataLoader(list(zip(points, classes)), batch_size=BATCH),
    max_grad_norm=1.0,
    strategy='blt-b100',
    epochs=EPOCHS,
    epsilon=8.0,
    delta=1e-5,
    folder=folder,
  )
  parts, stored = {'model': model, 'optimizer': optimizer}, folder / 'model.pt'
  if stored.exists():
    for name, state in torch.load(stored).items():
      parts[name].load_state_dict(state)
  else:
    optimizer.aggregator.require_new()  # A run that has rounds has lost its model.
    torch.save({name: part.state_dict() for name, part in parts.items()}, stored)
  for _ in range(EPOCHS):
    for x, y in loader:
      optimizer.zero_grad()
      torch.nn.functional.cross_entropy(model(x), y).backward()
      optimizer.step()
      torch.save({name: part.state_dict() for name, part in parts.items()}, folder / 'new.pt')
      (folder / 'new.pt').replace(stored)  # Whole or not at all.
  right = (model._module(points).argmax(dim=1) == classes).float().mean()
  print(f'accuracy {100 * right:.1f} %, {optimizer.aggregator.privacy_loss()}')
  optimizer.aggregator.close()


if __name__ == '__main__':
  main(pathlib.Path(*sys.argv[1:] or ['runs/opacus']))
