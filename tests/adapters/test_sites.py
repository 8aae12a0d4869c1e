"""A site that is killed in any phase of a round: no row twice, and a statement of all rounds."""

import json
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

import fl_dpftrl as dpftrl

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
SITE = """
import json, os, signal, sys
import numpy as np
import fl_dpftrl as dpftrl
from fl_dpftrl.adapters import sites
from fl_dpftrl.logs import ledgers
from fl_dpftrl.rounds import guards, noise_rows, private_round, released

folder, where, count, after = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == 'after'

def tell(kind, *values):
  with open(f'{folder}.{kind}', 'a') as file:
    file.write(json.dumps(values) + '\\n')
    file.flush()
    os.fsync(file.fileno())

def killing(method):
  calls = []
  def wrapped(*args, **options):
    calls.append(1)
    if len(calls) == count and not after:
      os.kill(os.getpid(), signal.SIGKILL)
    result = method(*args, **options)
    if len(calls) == count:
      os.kill(os.getpid(), signal.SIGKILL)
    return result
  return wrapped

if where:
  module, owner, name = where.split('.')
  owner = getattr(globals()[module], owner)
  setattr(owner, name, killing(getattr(owner, name)))

def update(model, person):
  tell('trained', aggregator.next_round - 1, person)
  return {'w': np.zeros(3, np.float32)}

people = [f'p{i}' for i in range(%d)]
with dpftrl.PrivateAggregator(
  dpftrl.BLT([0.7], [0.5]), template={'w': np.zeros(3, np.float32)}, noise_multiplier=2.0,
  clip_norm=1.0, report_goal=%d, folder=folder,
  participation=dpftrl.MinSep(num_rounds=40, min_sep=2, max_participations=9),
) as aggregator:
  for _ in range(%d):
    model, _ = sites.next_model(aggregator, {'w': np.zeros(3, np.float32)}, people, update)
    tell('sent', aggregator.next_round - 1, model['w'].tolist())
"""


def run(folder, where='', count=0, when='before'):
  text = SITE % (PEOPLE, GOAL, MODELS)
  words = [sys.executable, '-c', text, str(folder), where, str(count), when]
  return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('phase', PHASES)
@pytest.mark.slow
def test_a_killed_site_uses_no_row_twice_and_states_every_round(tmp_path, phase, when):
  folder = tmp_path / 'site'
  count = {'trained': 2 * GOAL + 2, 'closed': 1}.get(phase, 3)
  killed = run(folder, PHASES[phase], count, when)
  assert killed.returncode == -signal.SIGKILL, killed.stderr
  done = run(folder)
  assert done.returncode == 0, done.stderr
  told = {
    kind: [json.loads(line) for line in (tmp_path / f'site.{kind}').read_text().splitlines()]
    for kind in ('sent', 'trained')
  }
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
