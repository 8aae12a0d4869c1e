"""Banded noise beside DP-SGD at equal ε, both amplified by sampling: a study of `central.py`.

    python examples/central_study.py runs/central_study

A small form of the figures of Choquette-Choo et al. 2023: the best number of bands for each ε is
computed before any training. The same command resumes an interrupted study. The folder gets the
table, the page and the figures.
"""

import argparse
import pathlib
import shutil

import central

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.rules import sampling

EPSILONS, SEEDS = (0.5, 1, 2, 4, 8, 16), (0, 1, 2, 3, 4)
RATES, MOMENTUM = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0), 0.9
NUM_ROUNDS, BATCH_SIZE, DELTA, CLIP_NORM = 1000, 256, 1e-5, 1.0
MECHANISMS = [
  dpftrl.Mechanism(mechanism='identity', label='DP-SGD'),
  dpftrl.Mechanism(mechanism='banded_toeplitz', label='banded MF', objective='rms'),
]


def train(cell):
  """Trains a cell of the study by the trainer of `central.py`, in a folder of its own."""
  data, scheme = central.text(), cell.participation
  shutil.rmtree(cell.folder, ignore_errors=True)  # Of a run that was interrupted.
  epsilons = []

  def tell(done, weights, aggregator):
    if done == scheme.num_rounds and cell.noise is not None:
      epsilons.append(aggregator.privacy_loss().epsilon())

  weights = central.train(
    central.Setting(
      folder=cell.folder,
      scheme=scheme,
      strategy=cell.strategy,
      noise_multiplier=cell.noise_multiplier,
      delta=DELTA,
      clip_norm=CLIP_NORM,
      learning_rate=cell.server_learning_rate,
      momentum=MOMENTUM,
      seed=cell.seed,
      save_every=scheme.num_rounds,
    ),
    data['train'],
    tell,
  )
  values = {
    part: {'accuracy': central.accuracy(weights, data[part])} for part in ('validation', 'test')
  }
  return {**values, 'epsilon': epsilons[0] if epsilons else None, 'delta': DELTA}


def main(arguments=None) -> dpftrl.Study:
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('folder', type=pathlib.Path, help='folder of the study')
  args = parser.parse_args(arguments)
  try:
    study = dpftrl.study(
      train,
      folder=args.folder,
      mechanisms=MECHANISMS,
      epsilons=EPSILONS,
      server_learning_rates=RATES,
      participation=sampling.CyclicPoisson(
        num_rounds=NUM_ROUNDS, num_examples=len(central.text()['train'].y), batch_size=BATCH_SIZE
      ),
      clip_norm=CLIP_NORM,
      report_goal=BATCH_SIZE,
      delta=DELTA,
      seeds=SEEDS,
      workload=dpftrl.Workload(momentum=MOMENTUM),
      title='Banded MF and DP-SGD, both amplified by sampling',
      jobs=0,
    )
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  print(study.table)
  return study


if __name__ == '__main__':
  main()
