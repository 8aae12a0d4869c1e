"""Banded noise beside DP-SGD at equal ε, both amplified by sampling: a study of `central.py`.

    python examples/central_study.py runs/central_study

The setting is that of the figures of Choquette-Choo et al. 2023, made small: at each ε the best
number of bands is computed, not trained. A study that was interrupted goes on with the same
command. The page and the figures are in the folder.
"""

import argparse
import pathlib
import shutil
import statistics

import central
from matplotlib import figure
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.centralized import sampling
from fl_dpftrl.studies import design

EPSILONS, SEEDS = (0.5, 1, 2, 4, 8, 16), (0, 1, 2, 3, 4)
RATES, MOMENTUM = (0.125, 0.25, 0.5, 1.0), 0.9
NUM_ROUNDS, BATCH_SIZE, DELTA, CLIP_NORM = 1000, 256, 1e-5, 1.0
MECHANISMS = [
  design.Mechanism(mechanism='identity', label='DP-SGD'),
  design.Mechanism(mechanism='banded_toeplitz', label='banded MF', objective='rms'),
]


def train(cell):
  """Trains a cell of the study by the trainer of `central.py`, in a folder of its own."""
  data, scheme = central.text(), cell.sampling
  shutil.rmtree(cell.folder, ignore_errors=True)  # Of a run that was interrupted.
  epsilons = []

  def tell(done, weights, aggregator):
    if done == scheme.num_rounds and cell.noise is not None:
      epsilons.append(aggregator.epsilon())

  weights = central.train(
    central.Setting(
      folder=cell.folder,
      scheme=scheme,
      strategy=cell.strategy,
      noise_multiplier=cell.noise_multiplier,
      delta=cell.conditions.delta,
      clip_norm=cell.conditions.clip_norm,
      learning_rate=cell.server_learning_rate,
      momentum=MOMENTUM,
      seed=cell.seed,
      save_every=scheme.num_rounds,
    ),
    data['train'],
    tell,
  )
  return {
    **{
      name: {'accuracy': central.accuracy(weights, data[name])} for name in ('validation', 'test')
    },
    'epsilon': epsilons[0] if epsilons else None,
    'delta': cell.conditions.delta,
    'noise_multiplier': cell.noise_multiplier,
    'num_rounds': scheme.num_rounds,
    'sampling': sampling.name(scheme),
    'num_examples': scheme.num_examples,
    'batch_size': scheme.batch_size,
    'num_parts': scheme.num_parts,
  }


def draw(study: dpftrl.Study, path: pathlib.Path) -> None:
  """Draws accuracy over ε, and the gain over DP-SGD, with 95 % intervals over seeds."""
  by_label = {}
  for row in study.rows:
    by_label.setdefault(row.label, []).append(row)
  drawn = figure.Figure(figsize=(9.5, 3.9), layout='constrained')
  left, right = drawn.subplots(1, 2)
  for label, marker in (('banded MF', 'o'), ('DP-SGD', 's')):
    rows = [row for row in by_label[label] if row.tests]
    means, margins = zip(*(interval(list(row.tests.values())) for row in rows))
    at = [row.epsilon for row in rows]
    left.errorbar(at, means, margins, marker=marker, capsize=3, label=label)
    if label == 'banded MF':
      for row, mean in zip(rows, means):
        bands = f'{row.noise.num_bands}'
        place = dict(xytext=(-5, 5), textcoords='offset points', ha='right')
        left.annotate(bands, (row.epsilon, mean), **place)
  (silent,) = by_label['no noise']
  left.axhline(100 * silent.mean, color='0.5', linestyle='--', label='no noise')
  left.set_ylabel('test accuracy (%)')
  left.legend(loc='lower right', frameon=False)
  left.set_title('accuracy, with the number of bands', loc='left')
  gains = [
    (banded.epsilon, *interval([banded.tests[s] - plain.tests[s] for s in sorted(plain.tests)]))
    for banded, plain in zip(by_label['banded MF'], by_label['DP-SGD'])
    if plain.tests and plain.tests.keys() <= banded.tests.keys()
  ]
  right.errorbar(*zip(*gains), marker='o', capsize=3)
  right.axhline(0.0, color='0.5')
  right.set_ylabel('points of accuracy')
  right.set_title('banded MF less DP-SGD', loc='left')
  for axes in (left, right):
    axes.set_xscale('log', base=2)
    axes.margins(x=0.08)
    axes.set_xticks(EPSILONS, [f'{epsilon:g}' for epsilon in EPSILONS])
    axes.set_xlabel(f'ε at δ = {DELTA:g}')
  drawn.savefig(path, dpi=150)


def interval(values: list[float]) -> tuple[float, float]:
  """Returns the mean in percent, and half of its 95 % interval (Student's t)."""
  quantile = stats.t.ppf(0.975, len(values) - 1)
  margin = quantile * statistics.stdev(values) / len(values) ** 0.5
  return 100 * statistics.fmean(values), 100 * margin


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
      sampling=sampling.CyclicPoisson(
        num_rounds=NUM_ROUNDS, num_examples=len(central.text()['train'].y), batch_size=BATCH_SIZE
      ),
      clip_norm=CLIP_NORM,
      report_goal=BATCH_SIZE,
      delta=DELTA,
      seeds=SEEDS,
      extend_rates=1,
      workload=dpftrl.Workload(momentum=MOMENTUM),
      title='Banded MF and DP-SGD, both amplified by sampling',
    )
  except (ValueError, OSError) as problem:
    parser.error(str(problem))
  draw(study, args.folder / 'banded_and_dp_sgd.png')
  print(study)
  return study


if __name__ == '__main__':
  main()
