"""What a violated declared schema leaves: counted by hand, over one run and several."""

import json
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import replay_text
from tests.commands import lines

STRATEGY = dpftrl.BLT([0.9, 0.5], [0.1, 0.2])


def draw(seed, num_rounds=24, devices=40, size=5):
  """Returns the rounds of each device."""
  rng = np.random.default_rng(seed)
  rounds = {}
  for t in range(num_rounds):
    for device in rng.choice(devices, size, replace=False).tolist():
      rounds.setdefault(f'd{device}', []).append(t)
  return rounds


def write(path, rounds, num_rounds=24):
  pairs = sorted((t, device) for device, of in rounds.items() for t in of)
  dpftrl.write_log(
    path,
    rounds=[t for t, _ in pairs],
    device_ids=[device for _, device in pairs],
    num_rounds=num_rounds,
  )


def wrong(rounds, min_sep, most):
  """Returns the violating rounds of one device."""
  return {t for i, t in enumerate(rounds) if i >= most or (i and t - rounds[i - 1] < min_sep)}


@pytest.mark.parametrize('num_runs', [1, 2])
@pytest.mark.parametrize('min_sep, most', [(3, 2), (1, 3), (6, 24)])
def test_equals_a_count_by_hand(tmp_path, num_runs, min_sep, most):
  drawn = [draw(seed) for seed in range(num_runs)]
  runs = []
  for i, rounds in enumerate(drawn):
    write(tmp_path / f'{i}.parquet', rounds)
    runs.append(
      dpftrl.open_run(
        tmp_path / f'{i}.parquet',
        STRATEGY,
        noise_multiplier=4.0,
        declared_num_rounds=24,
        declared_min_sep=min_sep,
        declared_max_participations=most,
      )
    )
  statement = dpftrl.replay(runs, delta=1e-6)
  everyone = {d: [rounds.get(d, []) for rounds in drawn] for d in set().union(*drawn)}
  places = {
    (i, t, d)
    for d, of_runs in everyone.items()
    for i, rounds in enumerate(of_runs, 1)
    for t in wrong(rounds, min_sep, most)
  }
  violators = {d for *_, d in places}
  c = STRATEGY.strategy_matrix(24)
  of_run = lambda rounds: (c[:, rounds].sum(axis=1) ** 2).sum()
  exposed = {d: math.sqrt(sum(map(of_run, of_runs))) for d, of_runs in everyone.items()}
  left = statement.violations
  assert left.num_devices == len(violators)
  assert left.num_complied == len(everyone) - len(violators)
  rounds = sorted({place[:2] for place in places})
  assert left.num_rounds == len(rounds)
  assert [tuple(place.values()) for place in left.first_rounds] == rounds[:10]
  assert left.largest.sensitivity == pytest.approx(max(exposed[d] for d in violators))
  assert left.complied.to_json().items() <= statement.declared.to_json().items()
  # Everyone who complied has at most the declared loss.
  most_declared = statement.declared.guarantee.sensitivity * (1 + 1e-9)
  assert all(exposed[d] <= most_declared for d in everyone.keys() - violators)
  most_in_one = max(len(rounds) for of_runs in everyone.values() for rounds in of_runs)
  assert statement.max_participations == most_in_one
  most_rounds = max(sum(map(len, of_runs)) for of_runs in everyone.values())
  assert statement.most_over_runs == (most_rounds if num_runs > 1 else None)
  if num_runs > 1:
    assert statement.to_json()['max_participations_over_runs'] == most_rounds
    told = f'max per device k    {most_rounds} in all runs, {statement.max_participations} in one'
    assert told in replay_text.text(statement)


def replayed(*flags):
  done = lines.run(['replay', '--delta=1e-6', *flags])
  return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.mark.slow
def test_text_json_and_pages(tmp_path):
  log, page, public = (tmp_path / name for name in ('log.parquet', 'r.html', 'p.html'))
  write(log, {'a': [0, 1, 9], 'b': [0, 9], 'c': [4]})
  given = [f'--log={log}', '--strategy=tree_online', '--noise_multiplier=4']
  given += ['--declared_num_rounds=24', '--declared_min_sep=5']
  status, out, err = replayed(*given, f'--report={page}', f'--public_report={public}')
  assert status == 4 and err[-1].endswith('schema was not kept, by 1 device')
  assert 'not kept to what was declared: 1 devices, in 1 rounds (1)' in out
  assert 'any one of the 2 others    ε ≤ ' in out
  assert 'devices did not keep to it' in page.read_text()
  assert 'did not keep' not in public.read_text() and 'violations' not in public.read_text()
  _, out, _ = replayed(*given, '--json')
  violations = json.loads(out)['violations']
  assert (violations['num_devices'], violations['num_complied']) == (1, 2)
  assert violations['first_rounds'] == [{'run': 1, 'round': 1}]
  assert 'not protected' in violations['meaning']


def test_claims_and_void_guarantees_have_their_exit_status(tmp_path):
  log = tmp_path / 'log.parquet'
  write(log, {'a': [0, 9], 'b': [4]})
  given = [f'--log={log}', '--strategy=identity']
  status, out, err = replayed(*given, '--noise_multiplier=2', '--claim=3@1e-6', '--json')
  epsilon = json.loads(out)['worst_case']['epsilon']
  assert status == 3 and epsilon > 3
  assert 'ε ≤ 3 at δ = 1e-06 is not held, by worst case' in err[-1]
  more = f'--claim={epsilon}@1e-6'
  assert replayed(*given, '--noise_multiplier=2', more)[0] == 0
  declared = ('--declared_num_rounds=24', '--declared_min_sep=3')
  status, _, _ = replayed(*given, '--noise_multiplier=2', *declared, more)
  assert status == 3  # The declared guarantee is what a claim is about.
  status, out, err = replayed(*given, '--noise_multiplier=0', more, '--json')
  assert status == 4 and json.loads(out)['worst_case']['epsilon'] is None
  assert 'no noise was added' in err[-1]
