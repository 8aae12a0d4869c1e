"""The results of the command line: status and JSON of lines that use every command."""

import json
import math
import pathlib
import re
import shlex
import shutil
import tempfile
from typing import Any

from tests.commands import lines

PATH = pathlib.Path(__file__).with_name('commands.json')

_SCHEMA = '--num_rounds=24 --min_sep=6 --max_participations=3'
_LONG = '--num_rounds=2052 --min_sep=342 --max_participations=6'
_POPULATION = '--population=300 --report_goal=10 --num_rounds=40 --seed=3'
_NOISE = '--noise_multiplier=7.379 --delta=1e-10'
_OPTIMIZE = (
  ('identity', '--objective=rms'),
  ('tree_online', '--workload=momentum --momentum=0.9'),
  ('tree_full', '--separation=fixed'),
  ('dense', '--objective=rms'),
  ('multi_epoch', ''),
  ('banded', '--num_bands=3'),
  ('banded_toeplitz', '--num_bands=4 --objective=rms'),
  ('banded_sqrt', '--num_bands=4'),
  ('blt', '--num_buffers=2'),
)

LINES = (
  *(f'optimize --mechanism={m} {_SCHEMA} {f} --output={m}.json' for m, f in _OPTIMIZE),
  'optimize --mechanism=blt --num_rounds=64 --min_sep_range=4,16 --num_buffers=2',
  'optimize --mechanism=banded --num_rounds=32 --objective=rms --epsilon=4 --delta=1e-5'
  ' --num_examples=1000 --batch_size=50',
  f'optimize --mechanism=blt {_SCHEMA} --num_bands=3',
  *(f'describe {name}' for name in ('blt-b100', 'blt-b342-rms', 'toeplitz-b342-max')),
  f'describe blt-b400 {_LONG}',
  f'describe blt-b1000 {_LONG} --num_parameters=1000000',
  f'describe blt-b100-published {_SCHEMA} --separation=fixed',
  f'describe tree_online {_SCHEMA}',
  'describe banded.json --num_rounds=24 --min_sep=4',
  'describe identity',
  f'describe tree_full {_SCHEMA} --workload=momentum --momentum=0.5',
  f'account --strategy=blt-b400 {_NOISE} {_LONG}',
  f'account --strategy=tree_full {_NOISE} {_LONG} --group_size=2 --delta=1e-6',
  f'account --strategy=dense.json {_NOISE} {_SCHEMA} --adjacency=replace_one --max_epsilon=0.5',
  f'account --strategy=identity {_NOISE} --num_rounds=100 --sampling=poisson --num_examples=500'
  ' --batch_size=10 --adjacency=add_or_remove',
  f'account --strategy=banded.json {_NOISE} --num_rounds=24 --sampling=shuffled --num_examples=500'
  ' --batch_size=10',
  f'account --strategy=blt-b400 {_NOISE} --num_rounds=10 --min_sep=0',
  f'calibrate --strategy=blt-b400 --epsilon=2 --delta=1e-10 {_LONG}',
  f'calibrate --strategy=blt.json --rho=0.5 --delta=1e-6 --delta=1e-8 {_SCHEMA} --separation=fixed',
  'calibrate --strategy=identity --epsilon=2 --delta=1e-6 --num_rounds=100 --sampling=poisson'
  ' --num_examples=500 --batch_size=10',
  'calibrate --strategy=identity --epsilon=2 --delta=1e-6 --delta=1e-8 --num_rounds=60'
  ' --sampling=fixed_size --adjacency=replace_one --num_parts=2 --num_examples=1000'
  ' --batch_size=50',
  f'calibrate --strategy=blt-b400 --delta=1e-10 {_LONG}',
  f'calibrate --strategy=blt-b400 --epsilon=-1 --delta=1e-10 {_LONG}',
  f'simulate {_POPULATION} --timer_rounds=8 --output=log.parquet',
  f'simulate {_POPULATION} --timer_hours=24 --output=hours.parquet --dropout=0.1',
  f'simulate {_POPULATION} --availability=nightly --output=nightly.csv',
  'simulate --num_rounds=40 --sampling=shuffled --num_examples=50 --batch_size=10 --seed=1',
  'simulate --population=300 --num_rounds=40',
  'simulate --population=200 --report_goal=10 --num_rounds=20 --timer_rounds=4'
  ' --output_scenario=scenario.json',
  'simulate --scenario=scenario.json --seed=2',
  f'replay --log=log.parquet --strategy=blt.json {_NOISE}',
  f'replay --log=log.parquet --strategy=blt-b100 {_NOISE} --delta=1e-6 --group_size=2'
  ' --declared_num_rounds=40 --declared_min_sep=8 --report=page.html --evidence=evidence',
  f'replay --log=hours.parquet --strategy=tree_online {_NOISE} --declared_num_rounds=40'
  ' --declared_min_sep=30 --declared_max_participations=2',
  f'replay --log=written.csv --strategy=banded_toeplitz.json {_NOISE} --num_rounds=24',
  f'replay --log=written.csv --strategy=banded_toeplitz.json {_NOISE} --num_rounds=24'
  ' --columns=round=step',
  f'replay --log=log.parquet --strategy=identity {_NOISE} --claim=0.1@1e-10',
  f'replay --log=absent.parquet --strategy=identity {_NOISE}',
  'verify evidence',
  'verify absent',
  'prove absent',
  'replay files/people --units=files/owners.parquet --delta=1e-6',
  'replay files/fleet --delta=1e-6',
  'audit files/canaries --delta=1e-6',
  'verify files/evidence-of-fleet',
  'prove files/evidence',
  'forget files/fleet --names=files/names/names.db --salt=files/keys/salt --ids=written.csv',
  'sql --strategy=blt-b100 --num_rounds=20 --dialect=sqlite --output=replay.sql --gram=gram.csv',
  f'plan {_POPULATION} --timer_rounds=8 --delta=1e-6 --noise_multiplier=4 --num_simulations=2'
  ' --strategies=identity,tree_online,blt-b100 --output=plan.json',
  f'plan {_POPULATION} --timer_hours=24 --delta=1e-6 --epsilon=3 --num_simulations=1'
  ' --strategies=identity,blt:2 --max_epsilon=2',
  f'compare --mechanisms=identity,tree_full,banded_sqrt:4,blt.json,blt-b400 {_SCHEMA}'
  ' --output=compared',
  'compare --mechanisms=tree_online,banded_toeplitz:3 --num_rounds=24 --min_sep=4,8'
  ' --objective=rms --epsilon=2 --delta=1e-6 --report_goal=100',
  'compare --mechanisms=identity,banded_sqrt:3 --num_rounds=24 --workload=momentum --momentum=0.5',
  'audit --strategy=blt-b400 --noise_multiplier=2 --delta=1e-6 --num_rounds=8 --min_sep=4'
  ' --seed=1 --num_draws=2000',
  'audit --strategy=identity --noise_multiplier=2 --delta=1e-6 --num_rounds=4'
  ' --seed=1 --num_draws=2000',
  'train',
)
"""Command lines, in the order in which they run: later ones read what earlier ones wrote."""

_MASKED = re.compile(r'seconds$|version|made_with|checked_with|digest$|^salt$')
_WRITTEN = 'round,device_id\n0,a\n0,b\n7,a\n9,b\n13,c\n20,a\n'
_HEX = re.compile(r'\b[0-9a-f]{32,}\b')


def results() -> dict[str, Any]:
  """Returns the status of each line, with its JSON or its line of errors."""
  with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, 'written.csv').write_text(_WRITTEN)
    shutil.copytree(PATH.with_name('files') / '0.3.0', pathlib.Path(folder, 'files'))
    return {line: _result(line, folder) for line in LINES}


def _result(line: str, folder: str) -> dict[str, Any]:
  ended = lines.run([*shlex.split(line), '--json'], cwd=folder)
  if ended.stdout:
    return {'status': ended.returncode, 'json': _masked(json.loads(ended.stdout), folder)}
  return {'status': ended.returncode, 'stderr': _masked(ended.stderr.splitlines()[-1], folder)}


def _masked(value: Any, folder: str) -> Any:
  if isinstance(value, dict):
    return {k: '…' if _MASKED.search(k) else _masked(v, folder) for k, v in value.items()}
  if isinstance(value, list):
    return [_masked(one, folder) for one in value]
  return _HEX.sub('…', value.replace(folder, '…')) if isinstance(value, str) else value


def differences(one: Any, other: Any, where: str = '') -> list[str]:
  """Returns the places where two results differ; last digits of numbers may."""
  if isinstance(one, dict) and isinstance(other, dict):
    if list(one) != list(other):
      return [f'{where}: fields {list(one)} for {list(other)}']
    return [d for name in one for d in differences(one[name], other[name], f'{where} {name}')]
  if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
    return [d for i in range(len(one)) for d in differences(one[i], other[i], f'{where}[{i}]')]
  if isinstance(one, float) and isinstance(other, float):
    return [] if math.isclose(one, other, rel_tol=1e-6) else [f'{where}: {one} for {other}']
  return [] if one == other and type(one) is type(other) else [f'{where}: {one!r} for {other!r}']


def main() -> None:
  """Writes the results."""
  PATH.write_text(json.dumps(results(), indent=1, ensure_ascii=False) + '\n')


if __name__ == '__main__':
  main()
