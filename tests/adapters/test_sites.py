"""A site that is killed in any phase of a round: no row twice, and a statement of all rounds."""

import itertools
import json
import pathlib
import signal
import subprocess

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from tests import forks

ROOT = pathlib.Path(__file__).parents[2]
BLT = dpftrl.BLT([0.7], [0.5])
PEOPLE, GOAL, MODELS = 24, 4, 9
# Where the third round is killed, before or after a method.
PHASES = {
  'admitted': 'ledgers.LogWriter.begin',
  'trained': 'private_round.Round.add',
  'row': 'noise_rows.NoiseRows.integers',
  'released': 'released.ReleasedTable.put',
  'closed': 'guards.Guard.close',
}
WHEN = ('before', 'after')
# Each case is a fork that is killed, and a second one that goes on.
SITE = """
import json, os, pathlib, signal, sys
import numpy as np
import fl_dpftrl as dpftrl
from fl_dpftrl.adapters import sites
from fl_dpftrl.logs import ledgers
from fl_dpftrl.run import guards, noise_rows, private_round, released
from tests import forks

GOAL, PEOPLE, MODELS = json.loads(sys.argv[1])

def kill(where, count, after):
  module, owner, name = where.split('.')
  owner, calls = getattr(globals()[module], owner), []
  method = getattr(owner, name)
  def killed(*args, **options):
    calls.append(1)
    if len(calls) == count and not after:
      os.kill(os.getpid(), signal.SIGKILL)
    result = method(*args, **options)
    if len(calls) == count:
      os.kill(os.getpid(), signal.SIGKILL)
    return result
  setattr(owner, name, killed)

def run(folder):
  def tell(kind, *values):
    with open(f'{folder}.{kind}', 'a') as file:
      file.write(json.dumps(values) + '\\n')
      file.flush()
      os.fsync(file.fileno())

  def update(model, person):
    tell('trained', aggregator.next_round - 1, person)
    return {'w': np.zeros(3, np.float32)}

  with dpftrl.PrivateAggregator(
    dpftrl.BLT([0.7], [0.5]), template={'w': np.zeros(3, np.float32)}, noise_multiplier=2.0,
    clip_norm=1.0, report_goal=GOAL, folder=folder,
    participation=dpftrl.MinSep(num_rounds=40, min_sep=2, max_participations=9),
  ) as aggregator:
    people = [f'p{i}' for i in range(PEOPLE)]
    for _ in range(MODELS):
      model, _ = sites.next_model(aggregator, {'w': np.zeros(3, np.float32)}, people, update)
      tell('sent', aggregator.next_round - 1, model['w'].tolist())

def fork(folder, *killing):
  process = os.fork()
  if not process:
    try:
      if killing:
        kill(*killing)
      run(folder)
      os._exit(0)
    except BaseException as error:
      print(repr(error), file=sys.stderr, flush=True)
      os._exit(1)
  return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

run(sys.argv[3])  # Imports and compiled loops are the forks' too.
assert forks.num_threads() == 1
for folder, *killing in json.loads(sys.argv[2]):
  codes = fork(folder, *killing), fork(folder)
  pathlib.Path(f'{folder}.codes').write_text(json.dumps(codes))
"""


@pytest.fixture(scope='module')
def sites(tmp_path_factory):
  """Returns the folder with a site for each case, killed and gone on with."""
  parent = tmp_path_factory.mktemp('sites')
  count = lambda phase: {'trained': 2 * GOAL + 2, 'closed': 1}.get(phase, 3)
  cases = [
    (str(parent / f'{phase}-{when}'), PHASES[phase], count(phase), when == 'after')
    for phase, when in itertools.product(PHASES, WHEN)
  ]
  words = [*forks.PYTHON, '-c', SITE, *map(json.dumps, ([GOAL, PEOPLE, MODELS], cases))]
  words.append(str(parent / 'whole'))
  done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
  assert done.returncode == 0 and not done.stderr, done.stderr
  return parent


@pytest.mark.parametrize('when', WHEN)
@pytest.mark.parametrize('phase', PHASES)
@pytest.mark.slow
def test_a_killed_site_uses_no_row_twice_and_states_every_round(sites, phase, when):
  folder = sites / f'{phase}-{when}'
  told = {
    kind: [json.loads(line) for line in (sites / f'{folder.name}.{kind}').read_text().splitlines()]
    for kind in ('sent', 'trained', 'codes')
  }
  assert told['codes'] == [[-signal.SIGKILL, 0]]
  rows = [t for t, _ in told['sent']]
  assert len(set(rows)) == len(rows) and len({tuple(m) for _, m in told['sent']}) == len(rows)
  statement = dpftrl.replay(folder, delta=1e-6)
  assert statement.declared.holds and statement.num_rounds == max(rows) + 1
  lost = 0 if phase == 'closed' or (phase, when) == ('admitted', 'before') else 1
  assert statement.num_rounds - len(rows) == lost
  logged = {
    (t, device)
    for table in dpftrl.open_run(folder).log.tables()
    for t, device in zip(*(table.column(name).to_pylist() for name in ('round', 'device_id')))
  }
  assert {tuple(pair) for pair in told['trained']} <= logged
  rounds: dict[str, list[int]] = {}
  for t, device in sorted(logged):
    rounds.setdefault(device, []).append(t)
  gram = np.asarray(BLT.gram_matrix(statement.num_rounds))
  largest = max(gram[np.ix_(ts, ts)].sum() for ts in rounds.values())
  assert statement.observed.sensitivity**2 == pytest.approx(largest)
