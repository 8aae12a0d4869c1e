"""Files of a run's folder that were damaged, are older, or of another run: refused or harmless."""

import os
import pathlib
import shutil
import tempfile
import warnings

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from tests import made
from tests.fuzz import mutations

CASES = int(os.environ.get('FUZZ_CASES', '0'))
FEW = 40
GOAL, PEOPLE = 4, 24
IDS = [f'd{i}' for i in range(PEOPLE - 4)]  # Others join later.
MOMENTS = (2, 5, 9)
UNITS = 'units.csv'


def opened(folder: pathlib.Path):
  schema = dpftrl.MinSep(40, 2, 20)
  clip_norm = dpftrl.AdaptiveClipping(0.5, learning_rate=0.5)
  options = dict(clip_norm=clip_norm, metrics={'loss': 3.0}, report_goal=GOAL, delta=1e-6)
  units = dict(participation=dpftrl.PerUnit(schema), units=folder / UNITS)
  return made.aggregator(folder, **options, **units, moved=True)


def one_round(aggregator):
  """Runs a round of those who may come, and returns what it released."""
  cohort = aggregator.admissible(IDS, at_most=GOAL)
  with aggregator.round(cohort) as round_:
    for i in range(GOAL):
      round_.add(np.full(3, 0.4 * i), metrics={'loss': i})
  return round_.mean.tolist(), dict(round_.metrics)


def figures(folder: pathlib.Path):
  """Everything that a run's folder is asked for, and what its next round releases."""
  stated = dpftrl.replay(dpftrl.open_run(folder, units=folder / UNITS), delta=1e-6).to_json()
  with opened(folder) as aggregator:
    return (
      stated | {'log': None},
      (aggregator.next_round, aggregator.clip_norm, aggregator.metrics(), aggregator.max_rounds),
      aggregator.admissible(IDS).tolist(),
      one_round(aggregator),
    )


def moments_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns copies of a run's folder at some moments; the last two are closed, and killed."""
  run, moments = folder / 'run', []
  run.mkdir(parents=True)
  rows = [f'd{i},p{i // 2},0\n' for i in range(PEOPLE)]
  (run / UNITS).write_text('device_id,unit_id,from_round\n' + ''.join(rows[:-4]))

  def copied(name):
    moments.append(pathlib.Path(shutil.copytree(run, folder / name)))

  aggregator = opened(run)
  for t in range(MOMENTS[-1]):
    if t == MOMENTS[1]:  # The table of units grows, as people join.
      with (run / UNITS).open('a') as file:
        file.write(''.join(rows[-4:]).replace(',0\n', f',{t}\n'))
      aggregator.extend_units(run / UNITS)
    one_round(aggregator)
    if t + 1 in MOMENTS[:-1]:
      copied(f'open-{t}')
  copied('killed')
  aggregator.close()
  copied('closed')
  return moments[:-2] + moments[:-3:-1]


def changed(rng, path: pathlib.Path, older: list[pathlib.Path], other: pathlib.Path) -> str:
  """Changes a file of a folder, and returns how."""
  name, content = path.name, path.read_bytes()
  kind = rng.choice(['flip', 'flip', 'flip', 'cut', 'any', 'older', 'other'])
  replacing = [p for p in ([other] if kind == 'other' else older) if p.exists()]
  if kind in ('older', 'other') and replacing:
    path.write_bytes(replacing[rng.integers(len(replacing))].read_bytes())
  elif kind == 'cut' and content:
    path.write_bytes(content[: rng.integers(len(content))])
  elif kind == 'any':
    path.write_bytes(mutations.mutated(content, int(rng.integers(1 << 40))))
  elif content:
    flipped = bytearray(content)
    flipped[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    path.write_bytes(flipped)
  return f'{name}: {kind}'


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_no_file_of_a_run_is_changed_silently(tmp_path):
  """`FUZZ_CASES=2000` is the whole campaign: about 10 minutes."""
  rng, own = np.random.default_rng(11), moments_of(tmp_path / 'own')
  other = moments_of(tmp_path / 'other')
  # The last is killed, that before is closed.
  states = {}
  for folder in own[-2:]:
    with tempfile.TemporaryDirectory(dir=tmp_path) as place:
      states[folder] = figures(pathlib.Path(shutil.copytree(folder, f'{place}/run')))
  faults, refused, harmless = [], 0, 0
  for case in range(CASES or FEW):
    place = own[-2 + case % 2]
    names = sorted(p.relative_to(place) for p in place.rglob('*') if p.is_file())
    name = names[rng.integers(len(names))]
    with tempfile.TemporaryDirectory(dir=tmp_path) as scratch:
      folder = pathlib.Path(shutil.copytree(place, f'{scratch}/run'))
      how = changed(
        rng, folder / name, [o / name for o in own[:-2]], other[own.index(place)] / name
      )
      try:
        found = figures(folder)
      except (ValueError, OSError) as error:
        refused += 1
        text = str(error)
        if len(text) > 300 + len(scratch) or '\n' in text:
          faults.append((case, place.name, how, text))
      except Exception as error:
        faults.append((case, place.name, how, f'{type(error).__name__}: {error}'))
      else:
        harmless += found == states[place]
        if found != states[place]:
          where = [i for i, pair in enumerate(zip(found, states[place])) if pair[0] != pair[1]]
          faults.append((case, place.name, how, f'silent, in {where}'))
  print(f'{refused} refused, {harmless} harmless, {len(faults)} faults')
  warnings.warn(f'{refused} refused, {harmless} harmless', stacklevel=1)
  assert not faults, '\n'.join(map(str, faults))
