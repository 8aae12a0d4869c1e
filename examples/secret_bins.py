"""Noise at equal ε: BLTs in secret bins, BLTs without amplification, and banded noise in samples.

    python examples/secret_bins.py runs/secret_bins

Writes noise.csv and noise.svg: noise multiplier × RMS error of prefix sums for 2,052 rounds, one
participation in 342, δ = 1e-6; and epsilon.csv and epsilon.svg: what bins make of ε = 4.
"""

import csv
import math
import pathlib
import sys

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import workload_error
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.support import style

ROUNDS, BINS, BATCH, DELTA = 2052, 342, 1000, 1e-6
FEW_AND_MANY, BEFORE, DELTAS = (64, BINS), 4.0, (1e-4, 1e-6, 1e-8, 1e-10)
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
LOOKS = {
  'BLT': ('#767676', 'o-'),
  'banded, Poisson': ('#d55e00', 's-'),
  'BLT, secret bins': ('#0072b2', 'o-'),
  'banded Toeplitz, secret bins': ('#009e73', '^-'),
}


def blt(min_sep: int) -> dpftrl.Strategy:
  return dpftrl.optimize('blt', dpftrl.MinSep(ROUNDS, min_sep), objective='rms')


def banded(num_bands: int) -> dpftrl.Strategy:
  once = dpftrl.MinSep(ROUNDS, max_participations=1)
  return dpftrl.optimize('banded_toeplitz', once, objective='rms', num_bands=num_bands)


def noises() -> list[dict[str, float]]:
  """Returns the noise of each mechanism, a row for each ε."""
  poisson = sampling.CyclicPoisson(num_rounds=ROUNDS, num_examples=BINS * BATCH, batch_size=BATCH)
  bins, schema = dpftrl.SecretBins(ROUNDS, BINS), dpftrl.MinSep(num_rounds=ROUNDS, min_sep=BINS)
  shares = [-(-BINS // share) for share in (1, 2, 3, 4, 8, 16, 32)]
  several = {
    'banded, Poisson': (list(map(banded, poisson.candidate_bands())), poisson),
    'BLT, secret bins': (list(map(blt, shares)), bins),
    'banded Toeplitz, secret bins': (list(map(banded, shares)), bins),
  }
  rows, plain = [], blt(BINS)
  for epsilon in EPSILONS:
    target = {'epsilon': epsilon, 'delta': DELTA}
    known = dpftrl.calibrate(plain, schema, **target)
    row = {
      'epsilon': epsilon,
      'BLT': known.noise_multiplier * workload_error.error(plain, ROUNDS).rms,
    }
    for name, (strategies, scheme) in several.items():
      best, guarantee = accountant.choose(strategies, scheme, **target)
      row[name] = guarantee.noise_multiplier * workload_error.error(best, ROUNDS).rms
    print(row, file=sys.stderr)
    rows.append(row)
  return rows


def epsilons() -> list[dict[str, float | str]]:
  """Returns ε in secret bins of noise that has ε = BEFORE where bins are known."""
  rows = []
  for num_bins in FEW_AND_MANY:
    schema = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=num_bins)
    for name, strategy in (
      ('BLT', blt(num_bins)),
      ('tree', 'tree_full'),
      ('banded Toeplitz, 64 bands', banded(64)),
    ):
      for delta in DELTAS:
        noise = dpftrl.calibrate(strategy, schema, epsilon=BEFORE, delta=delta).noise_multiplier
        bins = dpftrl.SecretBins(ROUNDS, num_bins)
        after = dpftrl.account(strategy, bins, noise_multiplier=noise, delta=delta)
        rows.append(
          {
            'strategy': name,
            'bins': num_bins,
            'delta': delta,
            'before': BEFORE,
            'after': math.ceil(1e3 * after.epsilon()) / 1e3,
          }
        )
        print(rows[-1], file=sys.stderr)
  return rows


def write(path: pathlib.Path, rows: list[dict]) -> None:
  with path.open('w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerows([rows[0], *(row.values() for row in rows)])


def draw(rows: list[dict[str, float]], path: pathlib.Path) -> None:
  figure = style.Figure(figsize=(6.4, 4.0), facecolor='white', layout='constrained')
  style.dress(axes := figure.subplots())
  for name, (colour, look) in LOOKS.items():
    ratios = [row[name] / row['banded, Poisson'] for row in rows]
    axes.plot([row['epsilon'] for row in rows], ratios, look, color=colour, label=name)
  axes.set_xscale('log', base=2)
  axes.set_xticks(EPSILONS, [f'{epsilon:g}' for epsilon in EPSILONS])
  axes.set_xlabel(f'ε at δ = {DELTA:g}')
  axes.set_ylabel('noise over that of banded, Poisson')
  axes.set_ylim(bottom=0.0)
  axes.legend(frameon=False)
  path.write_bytes(style.image(figure, path.suffix.removeprefix('.')))


def draw_epsilons(rows: list[dict], path: pathlib.Path) -> None:
  figure = style.Figure(figsize=(6.4, 3.4), facecolor='white', layout='constrained')
  for axes, num_bins in zip(figure.subplots(1, 2, sharey=True), FEW_AND_MANY, strict=True):
    style.dress(axes)
    axes.axhline(BEFORE, color='#767676', linestyle='--', label='bins that are known')
    for name, look in (('tree', 'd-'), ('BLT', 'o-'), ('banded Toeplitz, 64 bands', '^-')):
      own = [row for row in rows if (row['strategy'], row['bins']) == (name, num_bins)]
      axes.plot([row['delta'] for row in own], [row['after'] for row in own], look, label=name)
    axes.set_xscale('log')
    axes.set_ylim(0.0, 1.1 * BEFORE)
    axes.set_xlabel('δ')
    axes.set_title(f'ε with {num_bins} bins', fontsize='medium')
  axes.legend(frameon=False, loc='lower right')
  path.write_bytes(style.image(figure, path.suffix.removeprefix('.')))


def main(folder: pathlib.Path) -> None:
  folder.mkdir(parents=True, exist_ok=True)
  rows = noises()
  write(folder / 'noise.csv', rows)
  draw(rows, folder / 'noise.svg')
  rows = epsilons()
  write(folder / 'epsilon.csv', rows)
  draw_epsilons(rows, folder / 'epsilon.svg')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/secret_bins'))
