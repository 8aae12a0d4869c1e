"""Files of every kind that later versions read: a folder for each version, with its figures.

`python -m tests.golden.files` writes the folder of a version that has none. It is never written
again. Devices, seeds, salts and models in it are made up.
"""

import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import fl_dpftrl as dpftrl
from fl_dpftrl.participation.rules import sampling
from tests import every_family, made
from tests.commands import lines

FOLDER = pathlib.Path(__file__).with_name('files')
FIGURES = 'figures.json'
DELTA = 1e-6
COHORTS = (('ann', 'bob'), ('eve',), ('dan',), ('ann', 'dan'), ('bob',), ('eve', 'fay'))
SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=3, max_participations=3)
CLAIM = made.claim(clip_norm=0.5, report_goal=2, participation=SCHEMA)
WORDS = made.claim(noise_multiplier=20.0, participation=SCHEMA)
OWNERS = {'device_id': ['ann', 'bob', 'eve', 'dan', 'fay'], 'unit_id': ['A', 'A', 'E', 'D', 'F']}
_SIZES = dict(num_rounds=6, num_examples=2, batch_size=1)
# Two devices take turns, which is as each of these allows.
PARTICIPATIONS = {
  'min_sep': dpftrl.MinSep(6, 2, 3),
  'min_sep_without_an_end': dpftrl.MinSep(None, 2, 3),
  'loss_budget': dpftrl.LossBudget(max_participations=3, min_sep=2),
  'poisson': sampling.CyclicPoisson(**_SIZES),
  'fixed_size': sampling.CyclicFixedSize(**_SIZES),
  'shuffled': sampling.Shuffled(num_parts=2, **_SIZES),
  'shuffled_once': sampling.ShuffledOnce(num_parts=2, **_SIZES),
  'bins': dpftrl.SecretBins(6, 2),
}
_CSV = 'round,device_id\n0,1\n1,2\n2,1\n3,2\n4,1\n5,2\n'
_FACTS = (
  *('num_rounds', 'num_devices', 'num_participations', 'min_sep', 'max_participations'),
  'void_reason',
)
_PARTS = 'worst_case', 'observed', 'declared', 'amplified', 'shuffled'
_GIVEN = 'sensitivity', 'sensitivity_kind', 'rho', 'mu', 'epsilon', 'holds'


def private(folder: pathlib.Path, **options: Any) -> dpftrl.PrivateAggregator:
  """The aggregator of a run with metrics and an adaptive clip norm."""
  clipping = dpftrl.AdaptiveClipping(0.5)
  arguments = dict(clip_norm=clipping, metrics={'loss': 10.0}, participation=SCHEMA, delta=DELTA)
  return made.aggregator(folder, **arguments | options)


def canaries(folder: pathlib.Path, **options: Any) -> dpftrl.PrivateAggregator:
  """The aggregator of a run with canaries."""
  template = dict(template=np.zeros(64, np.float32), canaries=dpftrl.Canaries(64))
  return made.aggregator(folder, participation=SCHEMA, delta=DELTA, **template | options)


def population(folder: pathlib.Path, **options: Any) -> dpftrl.Population:
  """A population with names, which lie in folders beside it."""
  files = dict(names=folder / 'names' / 'names.db', salt=folder / 'keys' / 'salt')
  return dpftrl.Population(folder / 'fleet', **files, **options)


def write(folder: pathlib.Path) -> None:
  """Writes files of every kind into an empty folder."""
  with dpftrl.Run(folder / 'run', CLAIM, delta=DELTA) as run:
    _rounds(run)
    shutil.copytree(folder / 'run', folder / 'open')
  dpftrl.write_evidence(folder / 'evidence', dpftrl.open_run(folder / 'run'), delta=DELTA)
  counts = f'--write_counts={folder / "counts.parquet"}'
  lines.run(['replay', folder / 'run', f'--delta={DELTA}', counts])
  with private(folder / 'private') as aggregator:
    for cohort in COHORTS[0], COHORTS[5]:
      with aggregator.round(cohort) as round_:
        for _ in cohort:
          round_.add(np.ones(3), metrics={'loss': 2.5})
  with canaries(folder / 'canaries') as aggregator:
    for cohort in COHORTS[0], COHORTS[5]:
      made.release(aggregator, cohort, np.full(64, 0.01, np.float32))
  _train(folder / 'trained')
  pq.write_table(pa.table({**OWNERS, 'from_round': [0, 0, 0, 0, 4]}), folder / 'owners.parquet')
  people = made.claim(participation=dpftrl.PerUnit(SCHEMA, 2, 'person'))
  with dpftrl.Run(folder / 'people', people, delta=DELTA, units=folder / 'owners.parquet') as run:
    _rounds(run)
  fleet = population(folder, epsilon={'adult': 4.0, 'minor': 2.0}, delta=DELTA, default='adult')
  fleet.classify(['dan'], 'minor')
  for name in 'words', 'ranking':
    with dpftrl.Run(folder / name, WORDS, population=fleet) as run:
      _rounds(run)
  fleet.withdraw(['eve'])
  fleet.forget(['bob'])
  fleet.end(folder / 'ranking', noise_is_deleted=True)
  dpftrl.write_evidence(folder / 'evidence-of-fleet', folder / 'fleet', delta=DELTA)
  for kind, participation in PARTICIPATIONS.items():
    (folder / 'claims' / kind).mkdir(parents=True)
    made.claim('identity', participation=participation).save(folder / 'claims' / kind)
    (folder / 'claims' / kind / 'participation.csv').write_text(_CSV)
  (folder / 'strategies').mkdir()
  for name in every_family.NAMES:
    path, strategy = folder / 'strategies' / f'{name}.json', every_family.example(name, 12)
    dpftrl.save_strategy(path, strategy, schema=SCHEMA, workload=dpftrl.Workload(momentum=0.5))
  (folder / 'logs').mkdir()
  (folder / 'logs' / 'log.csv').write_text(_CSV)
  made.log(folder / 'logs' / 'log.parquet', COHORTS)
  made.ledger(folder / 'logs' / 'written.parquet', COHORTS, WORDS)


def _rounds(run: dpftrl.Run) -> None:
  for cohort in COHORTS:
    with run.round(cohort) as round_:
      round_.released({'loss': 2.5})


def _train(folder: pathlib.Path) -> None:
  import tff_inprocess
  from tests.tff_inprocess import small_processes

  tff_inprocess.use()
  factory, rows = made.factory(), small_processes.clients()
  process = small_processes.unweighted(factory)
  names = [f'client-{number}' for number in range(6)]
  data = lambda t, name: rows[int(name[-1]) % 4]
  arguments = dict(num_rounds=3, clients=names, client_data=data, timer_rounds=3)
  dpftrl.train(process, factory, folder=folder, **arguments)


def _statement(run: Any) -> dict[str, Any]:
  """What a replay states, but for sentences and what later versions may add."""
  stated = dpftrl.replay(run, delta=DELTA).to_json()
  facts = {name: stated[name] for name in _FACTS if name in stated}
  for name in filter(stated.get, _PARTS):
    facts[name] = {given: stated[name][given] for given in _GIVEN if given in stated[name]}
  return facts


def _verified(folder: pathlib.Path) -> dict[str, Any]:
  result = dpftrl.verify(folder)
  return {'digest': result.digest, 'failed': [check.name for check in result.checks if check.found]}


def _audited(folder: pathlib.Path) -> dict[str, Any]:
  result = dpftrl.audit_run(folder, delta=DELTA).to_json()
  names = 'num_released', 'num_guesses', 'correct', 'energy', 'signal', 'variance'
  return _statement(folder) | {name: result[name] for name in names}


def _described(path: pathlib.Path) -> dict[str, Any]:
  described = dpftrl.describe(path, SCHEMA)
  return {'family': described.strategy.family, **described.figures}


def _counted(path: pathlib.Path) -> dict[str, Any]:
  known = dict(strategy=made.BLT, noise_multiplier=2.0, num_rounds=6)
  return _statement(dpftrl.open_run(from_counts=path, **known))


def _logged(path: pathlib.Path) -> dict[str, Any]:
  known = {} if path.name == 'written.parquet' else dict(noise_multiplier=20.0)
  return _statement(dpftrl.open_run(path, made.BLT, **known))


def _of_people(folder: pathlib.Path) -> dict[str, Any]:
  return _statement(dpftrl.open_run(folder, units=folder.with_name('owners.parquet')))


READERS: dict[str, Callable[[pathlib.Path], dict[str, Any]]] = {
  **dict.fromkeys(('run', 'open', 'private', 'trained'), _statement),
  **dict.fromkeys(('fleet', 'words', 'ranking'), _statement),
  'canaries': _audited,
  'people': _of_people,
  'counts.parquet': _counted,
  'evidence': _verified,
  'evidence-of-fleet': _verified,
  **{f'claims/{kind}': _statement for kind in PARTICIPATIONS},
  **{f'strategies/{name}.json': _described for name in every_family.NAMES},
  **{f'logs/{name}': _logged for name in ('log.csv', 'log.parquet', 'written.parquet')},
}
"""Each path in a folder, with the function that reads it and returns its figures."""


def main() -> None:
  """Writes the folder of this version, from one that is nobody's."""
  folder = FOLDER / dpftrl.__version__
  if folder.exists():
    raise SystemExit(f'{folder.name} has its files, which are never written again')
  with tempfile.TemporaryDirectory(prefix='files-') as place:
    written = pathlib.Path(place, 'files')
    written.mkdir()
    write(written)
    # Pages and pictures are for people, and locks hold nothing.
    unread = shutil.ignore_patterns('*.html', '*.png', '*.svg', '*lock', 'tensorboard')
    shutil.copytree(written, folder, ignore=unread)
  with tempfile.TemporaryDirectory() as place:
    copy = shutil.copytree(folder, pathlib.Path(place, 'copy'))
    figures = {name: read(copy / name) for name, read in READERS.items()}
  (folder / FIGURES).write_text(json.dumps(figures, indent=1, ensure_ascii=False) + '\n')


if __name__ == '__main__':
  main()
