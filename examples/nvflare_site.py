"""A site of NVFlare: logistic regression over its own patients, who trust nobody outside of it.

Run by `NumpyFedAvgRecipe(train_script='examples/nvflare_site.py', train_args='--folder=runs')`, or
by the simulator: python examples/nvflare_site.py --simulate --sites=2 --folder=runs
"""

import argparse
import pathlib
import zlib

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters import nvflare

PATIENTS, FEATURES, ROUNDS = 200, 4, 5
MODEL = {'numpy_key': np.zeros(FEATURES + 1, np.float32)}
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=2, max_participations=2)


def patients_of(site: str) -> dict[str, tuple[np.ndarray, float]]:
  """Returns features and outcome of each patient of a site, by an id of the patient's."""
  generator = np.random.default_rng(zlib.crc32(site.encode()))
  features = generator.normal(size=(PATIENTS, FEATURES))
  ill = features @ np.linspace(-1.0, 1.0, FEATURES) + 0.3 * generator.normal(size=PATIENTS) > 0.0
  rows = np.column_stack([features, np.ones(PATIENTS)])
  return {f'{site}-{i}': (row, float(y)) for i, (row, y) in enumerate(zip(rows, ill))}


def train(site: str, folder: pathlib.Path) -> None:
  """Answers the rounds of the server with private means over the patients of a site."""
  patients = patients_of(site)

  def update(model, patient):
    row, outcome = patients[patient]
    chance = 1.0 / (1.0 + np.exp(-row @ model['numpy_key']))
    return {'numpy_key': ((outcome - chance) * row).astype(np.float32)}

  with dpftrl.PrivateAggregator(
    'blt-b40-endless',
    template=MODEL,
    clip_norm=2.0,
    report_goal=60,
    folder=folder / site,
    participation=SCHEMA,
    max_epsilon=8.0,
    delta=1e-5,
  ) as aggregator:
    nvflare.answer_rounds(aggregator, [*patients], update)


def simulate(num_sites: int, folder: pathlib.Path) -> None:
  """Runs server and sites by NVFlare's simulator."""
  from nvflare.app_common.np.recipes import NumpyFedAvgRecipe
  from nvflare.recipe import SimEnv

  recipe = NumpyFedAvgRecipe(
    model=MODEL['numpy_key'].tolist(),
    min_clients=num_sites,
    num_rounds=ROUNDS,
    train_script=__file__,
    train_args=f'--folder={folder}',
  )
  recipe.execute(SimEnv(num_clients=num_sites, workspace_root=str(folder / 'nvflare')))


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--folder', type=pathlib.Path, required=True)
  parser.add_argument('--simulate', action='store_true')
  parser.add_argument('--sites', type=int, default=2)
  args = parser.parse_args()
  if args.simulate:
    args.folder.mkdir(parents=True, exist_ok=True)
    simulate(args.sites, args.folder.resolve())
  else:
    from nvflare import client

    client.init()
    train(client.get_site_name(), args.folder)
