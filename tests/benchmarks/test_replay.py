"""The parts of the replay benchmark that need no long run."""

import argparse
import collections
import dataclasses
import json
import pathlib

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks import process, sides
from benchmarks.replay import cases, generate, peer, results, run
from fl_dpftrl.commands import replay as replay_command
from fl_dpftrl.families import identity
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import replay, runs

SMALL = cases.Case(size='small', num_devices=4100, num_rounds=900, cohort=10)


def small(tmp_path, **changes):
  case = dataclasses.replace(SMALL, **changes)
  path = tmp_path / case.file_name
  generate.write(path, case)
  return path


@pytest.mark.parametrize('ids', ['integer', 'text'])
def test_generated_log(tmp_path, ids):
  path = small(tmp_path, ids=ids)
  assert [p.name for p in tmp_path.iterdir()] == [path.name]
  table = pq.read_table(path)
  assert table.num_rows == SMALL.num_participations == 9000
  rounds = table.column('round').to_numpy()
  assert (np.bincount(rounds) == SMALL.cohort).all()
  by_device = collections.defaultdict(list)
  for round_index, device in zip(rounds.tolist(), table.column('device_id').to_pylist()):
    by_device[device].append(round_index)
  apart = np.concatenate([np.diff(r) for r in by_device.values()])
  assert apart.min() >= generate.LEAST_GAP
  # Devices do come back, and later than they could.
  assert apart.size > 4000 and apart.max() > generate.MOST_GAP
  # The peer and ours find what was generated.
  log = log_lib.read_log(path)
  assert log.num_rounds == SMALL.num_rounds
  statement = replay.replay(
    runs.Run.of(log, identity.Identity(), noise_multiplier=8.0), deltas=1e-6
  )
  assert statement.counted.num_participations == 9000
  assert statement.min_sep == peer.min_sep(str(path), 1) == apart.min()
  assert run.of_ours(json.dumps(statement.to_json())) == {
    'min_sep': apart.min(),
    'num_participations': 9000,
  }


def test_gaps_are_kept_where_nearly_all_devices_are_away():
  last = np.full(4001, -generate.MOST_GAP)
  for round_index, devices in enumerate(generate.cohorts(4001, 1500, 10)):
    assert np.unique(devices).size == 10
    assert (round_index - last[devices] >= generate.LEAST_GAP).all()
    last[devices] = round_index


def test_an_interrupted_log_is_none(tmp_path):
  def interrupt(text):
    raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    generate.write(tmp_path / 'log.parquet', SMALL, interrupt)
  assert not list(tmp_path.iterdir())


def test_command_is_understood(tmp_path):
  program, command, *arguments = run.command(cases.CASES[0], tmp_path)
  assert (pathlib.Path(program).name, command) == ('fl-dpftrl', 'replay')
  parser = argparse.ArgumentParser()
  replay_command.add_arguments(parser)
  parser.add_argument('--json', action='store_true')
  args = parser.parse_args(arguments)
  assert (args.strategy, args.noise_multiplier, args.delta) == ('blt-b400', 8.0, [1e-6])


def side(*seconds, min_sep=200, **kwargs):
  return sides.Side(
    seconds=seconds,
    cpu_seconds=seconds,
    peak_mebibytes=100.4,
    figures={'min_sep': min_sep},
    **kwargs,
  )


def test_another_min_sep_is_a_failure():
  both = {'ours': side(1.0), 'peer': side(2.0)}
  assert run.agreed(**both) == both
  found = run.agreed(side(1.0), side(1.0, min_sep=199))
  assert found['ours'].failures == ('min_sep is 200, the bare query says 199',)
  row = results.Row(SMALL, **found)
  assert row.ratio is None and 'bare query says 199' in results.table([row])


@pytest.mark.slow
def test_measures(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(cases, 'CASES', (SMALL,))
  monkeypatch.setattr(process, 'pin', lambda num_cores: False)
  # The generator's own process would not know the case.
  small(tmp_path)
  arguments = [f'--cache={tmp_path}', f'--output={tmp_path}', '--repeats=1']
  assert run.main(arguments) == 0
  assert '9,000' in capsys.readouterr().out
  (row,) = json.loads((tmp_path / 'replay.json').read_text())['rows']
  assert row['ours']['figures']['min_sep'] == row['peer']['figures']['min_sep']
  assert row['ratio'] > 0 and (tmp_path / 'replay.md').exists()
