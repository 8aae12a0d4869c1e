"""Bad input of every command: one short line that names the flag, status 2, nothing written."""

import json
import os
import re
import shutil

import pytest

from tests import made

# Flags with which each command does what it should; a flag that is given again takes their place.
_ROUNDS = '--num_rounds=9'
_NOISE = '--strategy=identity --noise_multiplier=3 --delta=1e-6'
_DEVICES = '--population=4000 --report_goal=40 --num_rounds=30'
BASE = {
  'optimize': f'--mechanism=blt {_ROUNDS}',
  'describe': f'identity {_ROUNDS}',
  'compare': f'--mechanisms=identity {_ROUNDS}',
  'account': f'{_NOISE} {_ROUNDS}',
  'calibrate': f'--strategy=identity --delta=1e-6 {_ROUNDS}',
  'replay': f'--log=log.parquet {_NOISE}',
  'sql': f'--strategy=identity {_ROUNDS} --dialect=sqlite --output=written.sql --gram=written.csv',
  'simulate': f'{_DEVICES} --output=written.parquet',
  'plan': f'{_DEVICES} --timer_hours=2 --delta=1e-6 --noise_multiplier=9 --strategies=blt:2',
  'audit': f'{_NOISE} --num_rounds=8 --min_sep=4 --seed=1 --num_draws=2000',
  'verify': 'log.parquet',
}
_SAMPLED = '--num_rounds=60 --num_examples=1000 --batch_size=50 --sampling'
_BATCHES = '--num_examples=6 --batch_size=2 --num_parts=3 --sampling'
_AMPLIFIED = '--epsilon=1 --delta=1e-6 --num_examples=10 --batch_size=7 --mechanism'

ERRORS = [
  ('optimize', '--mechanism=nope', 'banded.*blt'),
  ('optimize', '--num_rounds=x', "--num_rounds.*'x'"),
  ('optimize', '--num_bands=2', '--num_bands=2'),
  ('optimize', '--num_buffers=2 --mechanism=identity', '--num_buffers=2'),
  ('optimize', '--num_bands=4 --mechanism=banded --min_sep=3', '1 to 3.*4'),
  ('optimize', '--num_bands=10 --mechanism=banded_toeplitz', '1 to 9.*10'),
  ('optimize', '--num_rounds=100000 --mechanism=banded_sqrt', 'num_bands'),
  ('optimize', '--num_rounds=1000000000000 --mechanism=dense', 'at most 16384'),
  ('optimize', '--min_sep_range=3', "'3'"),
  ('optimize', '--min_sep_range=4,2', "'4,2'"),
  ('optimize', '--min_sep_range=2,4 --min_sep=2', '--min_sep=2 and --min_sep_range=2,4'),
  ('optimize', '--min_sep_range=2,4 --mechanism=banded', '--min_sep_range=2,4.*banded'),
  ('optimize', '--momentum=0.9', '--workload=momentum'),
  ('optimize', '--workload=momentum', '--momentum'),
  ('optimize', '--output=a.txt', 'a.txt.*.json'),
  ('optimize', '--output=no/such/a.json', 'no/such/a.json'),
  ('optimize', '--output=folder.json', '--output=folder.json is a folder; name a file'),
  ('optimize', '--epsilon=1 --mechanism=banded', '--epsilon=1.0 needs --delta'),
  ('optimize', f'{_AMPLIFIED}=banded', '--epsilon=1.0 needs --objective=rms'),
  ('optimize', f'{_AMPLIFIED}=blt --objective=rms', 'blt.*--batch_size.*banded'),
  ('optimize', f'{_AMPLIFIED}=banded --num_bands=2', '--num_bands=2 and --epsilon=1.0 exclude'),
  ('optimize', f'{_AMPLIFIED}=banded --objective=rms --batch_size=70', 'batch_size=70'),
  ('optimize', '--epsilon=1 --num_bins=3 --mechanism=blt', '--epsilon=1.0 needs --delta'),
  ('optimize', '--num_bins=3 --mechanism=blt', '--num_bins=3 needs --epsilon'),
  ('optimize', f'{_AMPLIFIED}=banded --num_bins=3', '--num_examples=10 and --epsilon=1.0 exclude'),
  ('describe', '--num_rounds=99999999999999999999', 'num_rounds must be at most 2.*9999'),
  ('describe', '--separation=any', "'any'"),
  ('compare', '--mechanisms=nope', "--mechanisms.*'nope'[^…]*blt, or one of a module to --import"),
  ('compare', '--mechanism=blt', 'arguments: --mechanism=blt; did you mean --mechanisms?'),
  ('compare', '--mechanisms=blt,,identity', '--mechanisms.*empty'),
  ('compare', '--mechanisms=broken.json', '--mechanisms.*broken.json'),
  ('compare', '--mechanisms=blt:9', 'blt:9: none of them.*num_buffers must be 1 to 8'),
  ('compare', '--mechanisms=banded:9 --min_sep=3', '--mechanisms=banded'),
  ('compare', '--min_sep=0', "--min_sep.*'0'"),
  ('compare', '--min_sep=3,3', '--min_sep.*twice'),
  ('compare', '--min_sep=3:5', '--min_sep.*LOW'),
  ('compare', '--min_sep=1:5:9999', '--min_sep.*1000'),
  ('compare', '--max_participations=2,-1', "--max_participations.*'-1'"),
  ('compare', '--num_rounds=8,9 --min_sep=2,3', '--num_rounds and --min_sep'),
  ('compare', '--delta=1e-6', '--delta=1e-06 needs --epsilon'),
  ('compare', '--epsilon=2', '--epsilon=2.0 needs --delta'),
  ('compare', '--epsilon=2 --delta=2', 'delta must lie'),
  ('compare', '--epsilon=2 --delta=1e-6 --report_goal=0', 'report_goal'),
  ('compare', '--epsilon=2,2', '--epsilon.*twice'),
  ('compare', '--epsilon=0,2', "--epsilon.*positive.*'0'"),
  ('compare', '--epsilon=1,2 --delta=1e-6 --min_sep=2,3', '--min_sep and --epsilon cannot both'),
  ('compare', '--epsilon=2 --delta=1e-6 --adjacency=any', 'adjacency must be one of zero_out'),
  ('compare', '--adjacency=replace_one', '--adjacency=replace_one needs --epsilon'),
  ('compare', '--sampling=poisson', '--sampling=poisson needs --epsilon'),
  ('compare', '--sampling=poisson,all', "--sampling: 'all' is none of poisson"),
  ('compare', '--epsilon=2 --delta=1e-6 --sampling=bins', '--sampling=bins needs --num_bins'),
  ('compare', '--epsilon=2 --delta=1e-6 --num_bins=3', '--num_bins=3 needs a --sampling that'),
  ('compare', '--import=nowhere', '--import=nowhere failed: ModuleNotFoundError: .*nowhere'),
  ('compare', '--output=broken.json', '--output.*folder'),
  ('account', '--delta=1 --delta=0.5', 'delta.*1'),
  ('account', '--strategy=banded-b16 --num_rounds=257', 'num_rounds=257 is beyond the 256 rounds'),
  ('account', '--tuning=geometric', "tuning.*LAW:MEAN.*'geometric'"),
  ('account', '--max_epsilon=0', '--max_epsilon=0.0 must be positive'),
  ('account', f'{_SAMPLED}=poisson --num_parts=4 --strategy=banded-b16', '4 is fewer than the 16'),
  ('calibrate', '', '--epsilon.*--rho'),
  ('calibrate', '--rho=1 --epsilon=1', 'not allowed'),
  ('calibrate', '--rho=1 --noise_multiplier=1', '--noise_multiplier'),
  ('calibrate', '--rho=1 --adjacency=add_or_remove', 'add_or_remove is refused'),
  ('calibrate', f'{_SAMPLED}=poisson --epsilon=1 --min_sep=2', '--min_sep=2 and --sampling=poi'),
  ('calibrate', f'{_SAMPLED}=poisson --epsilon=1 --group_size=2', 'group_size=2 is refused'),
  ('calibrate', f'{_SAMPLED}=poisson --epsilon=1 --strategy=blt-b400', 'banded strategy'),
  ('calibrate', f'{_SAMPLED}=fixed_size --rho=1', 'rho=1.0: give epsilon'),
  ('calibrate', f'{_SAMPLED}=fixed_size --epsilon=1 --adjacency=add_or_remove',
   'zero_out, replace_one.*add_or_remove'),
  ('calibrate', f'{_SAMPLED}=shuffled --epsilon=1 --adjacency=add_or_remove',
   'add_or_remove is refused'),
  ('calibrate', f'{_SAMPLED}=shuffled --epsilon=1 --batch_size=0.5', 'batch_size.*0.5'),
  ('replay', '--log=nowhere.parquet', 'nowhere.parquet: no such file'),
  ('replay', '--columns=step', "replay: --columns='step' must be like round=step"),
  ('replay', '--columns=round=a,device_id=a', "replay: --columns='round=a,.*' names one column"),
  ('replay', '--first_round=-1', 'replay: --first_round must be at least 0, got -1'),
  ('sql', '--dialect=tsql', "dialect.*'tsql'.*bigquery"),
  ('sql', '--gram=g.txt', 'g.txt.*must end in .parquet or .csv'),
  ('sql', '--output=replay.txt', '--output=replay.txt must end in .sql'),
  ('sql', '--num_rounds=20000', 'num_rounds=20000 must be at most 10000'),
  ('replay', '--write_counts=c.txt', 'c.txt.*must end in .parquet or .csv'),
  ('replay', '--num_rounds=7', 'its num_rounds is 12, not 7'),
  ('replay', '--adjacency=add_or_remove', 'add_or_remove is refused'),
  ('replay', '--declared_min_sep=3', 'declared_min_sep=3 needs declared_num_rounds'),
  ('replay', '--units=u.csv --declared_num_rounds=12', 'is of devices.*not go with --units'),
  ('replay', '--declared_num_rounds=5', 'must be at least the 12 rounds of the log'),
  ('replay', '--report=no/p.html', '--report=no/p.html: its folder'),
  ('replay', '--report=p.html --public_report=p.html', 'another file than --report'),
  ('replay', '--evidence=no/evidence', 'does not exist'),
  ('replay', 'run', '--log does not go with run'),
  ('replay', f'{_BATCHES}=poisson --group_size=2', 'group_size=2 is refused'),
  ('replay', f'{_BATCHES}=poisson --adjacency=add_or_remove', 'is refused'),
  ('replay', f'{_BATCHES}=poisson --strategy=blt-b400', 'needs a banded strat'),
  ('replay', f'{_BATCHES}=poisson --batch_size=300', 'batch_size=300 is more'),
  ('replay', f'{_BATCHES}=other', 'shuffled_once'),
  ('simulate', '--population=0', 'population'),
  ('simulate', '--population=2147483647', 'GiB'),
  ('simulate', '--num_rounds=1000000000000', '--num_rounds=1000000000000'),
  ('simulate', '--timer_hours=1e300', 'a century'),
  ('simulate', '--timer_hours=1 --timer_rounds=2', 'not allowed with'),
  ('simulate', '--clients_per_round=3', 'clients_per_round'),
  ('simulate', '--availability=missing.json', 'missing.json'),
  ('simulate', '--output=no/log.parquet', 'folder does not exist'),
  ('simulate', '--output=log.csv', 'must end in .parquet'),
  ('simulate', '--output_scenario=s.txt', 'must end in .json'),
  ('account', '--sampling=bins', '--sampling=bins needs --num_bins'),
  ('account', '--sampling=bins --num_bins=99', 'num_bins=99 is more than'),
  ('account', f'{_SAMPLED}=bins --num_bins=3', '--num_examples=1000 does not go with'),
  ('account', f'{_SAMPLED}=poisson --num_bins=3', '--num_bins=3 does not go with'),
  ('simulate', '--num_bins=3 --sampling=bins', '--report_goal=40 conflicts .* close at a goal'),
  ('simulate', '--num_parts=3', '--num_parts=3 needs --sampling'),
  ('simulate', f'{_SAMPLED}=poisson', '--population=4000 conflicts with'),
  ('simulate', '--population=100 --report_goal=30 --timer_rounds=5',
   'round 3 stalled.*timer_rounds of at most 3'),
  ('plan', '--max_copies=-1', '--max_copies=-1'),
  ('plan', '--strategies=bread', "--strategies: 'bread'"),
  ('plan', '--output=plan.txt', '--output=plan.txt must end in .json'),
  ('plan', '--report_goals=0', '--report_goals'),
  ('plan', '--population=100 --report_goal=20 --timer_hours=1000', 'stalled.*; try '),
  ('audit', '--num_draws=9', 'num_draws must be at least 1000'),
  ('audit', 'run', '--strategy does not go with run'),
  ('verify', '', 'log.parquet'),
]  # fmt: skip
# Command lines without those flags.
_HUGE = 'x' * 5000
LINES = [
  ('', 'COMMAND must be one of optimize'),
  ('traim', "'traim'"),
  (_HUGE, 'COMMAND must be one of'),
  ('optimize', '--mechanism'),
  ('optimize --mechanism=blt', '--num_rounds'),
  ('describe', 'STRATEGY'),
  ('describe tree_online', '--num_rounds is needed$'),
  ('describe tree_online --num_rounds=1000000000000', 'at most 16777216'),
  ('describe tree_full --num_rounds=1000000000000', 'at most 16777216'),
  ('describe nope.json', "'nope.json'"),
  ('describe blt-b400 --min_sep=4', '--num_rounds'),
  (f'describe {_HUGE}', 'strategy'),
  (f'describe --{_HUGE}', 'unrecognized'),
  ("describe '\x1b[2J\nε at δ'", 'x1b'),
  ('compare', '--mechanisms'),
  ('compare --mechanisms=blt', '--num_rounds'),
  ('account --strategy=identity --delta=1e-6 --num_rounds=5', '--noise_multiplier.*--rho'),
  ('replay --strategy=identity --delta=1e-6', '--log is needed, or the folder of a run'),
  (f'replay --log=twice.csv {_NOISE}', "twice.csv, row 2: device 'a' is twice in round 0"),
  ('replay absent --delta=1e-6', "'absent' is no folder of a run"),
  ('replay log.parquet --strategy=identity --delta=1e-6', 'give it as --log=log.parquet'),
  ('replay absent --delta=1e-6 --sampling=poisson', '--sampling does not go with absent'),
  ('verify .', 'holds no SHA256SUMS: it is no evidence'),
  ('prove', 'FILE'),
  ('prove absent', "FILE 'absent' does not exist; name a certificate"),
  ('simulate --num_rounds=3', '--population is needed, or --scenario'),
  *(
    (f'simulate {_SAMPLED}=poisson {flag}', f'{flag} conflicts with')
    for flag in ('--timer_rounds=2', '--scenario=scenario.json')
  ),
  *(
    (f'audit absent --delta=1e-6 --{name}=3', f'--{name} does not go with absent')
    for name in ('clip_norm', 'min_sep', 'max_participations', 'num_draws', 'seed')
  ),
  ('simulate --scenario=broken.json', '--scenario=broken.json is no scenario file'),
  ('simulate --scenario=absent.json', 'absent.json: No such file'),
]
SCENARIO = {
  'format': 'fl_dpftrl scenario',
  'version': 1,
  'population': 300,
  'report_goal': 10,
  'num_rounds': 30,
  'timer_rounds': 8,
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp('inputs')
  made.log(path / 'log.parquet', ['ac', 'b', '', '', 'a', '', 'b', '', '', 'a', '', ''])
  (path / 'twice.csv').write_text('round,device_id\n0,a\n0,a\n')
  (path / 'broken.json').write_text('{}')
  (path / 'folder.json').mkdir()
  (path / 'scenario.json').write_text(json.dumps(SCENARIO))
  return path


def refused(run, line, words):
  before = sorted(os.listdir())
  status, out, err = run(line)
  assert (status, out) == (2, ''), err
  last = err.splitlines()[-1]
  assert last.startswith('fl-dpftrl') and re.search(words, last), err
  # A command may say before what it leaves out.
  assert err.count('\n') == 1 + len(re.findall('^[a-z]+: .* is left out', err, re.M))
  assert len(last) <= 300 and last.isprintable()
  assert sorted(os.listdir()) == before and not os.listdir('folder.json')


@pytest.mark.parametrize(
  'command, flags, words', ERRORS, ids=lambda value: value.encode('unicode_escape').decode()[:60]
)
def test_a_bad_flag(run, folder, monkeypatch, command, flags, words):
  monkeypatch.setattr('fl_dpftrl.support.machine.free_memory', lambda: 2**33)
  monkeypatch.chdir(folder)
  refused(run, f'{command} {BASE[command]} {flags}', words)


@pytest.mark.parametrize(
  'line, words', LINES, ids=lambda value: value.encode('unicode_escape').decode()[:60]
)
def test_a_bad_line(run, folder, monkeypatch, line, words):
  monkeypatch.chdir(folder)
  refused(run, line, words)


@made.cases(
  'change, words',
  ({'format': 'other'}, 'no scenario file'),
  ({'version': 2}, 'version must be 1, got 2'),
  ({'populaton': 3}, "'populaton' is no property of a scenario"),
  ({'population': True}, 'population must be a whole number, got True'),
  ({'population': 0}, '--population must be at least 1'),
  ({'dropout': '0.1'}, 'dropout must be a number'),
  ({'seed': float('nan')}, '--scenario=scenario.json'),
  ({'window_hours': [1, 'x']}, 'window_hours must be a list of numbers'),
  ({'window_hours': [9, 3]}, 'window_hours'),
  ({'daytime': 0.1, 'availability': 'always'}, 'daytime is for availability nightly'),
  ({'availability': 3}, 'availability must be text'),
  ({'timer_hours': 3.0}, 'timer_hours and timer_rounds exclude each other'),
  ({'report_goal': None}, '--report_goal is needed, or --scenario'),
)
@pytest.mark.parametrize('command', ['simulate', 'plan --delta=1e-6 --epsilon=1'])
def test_a_bad_scenario_file(run, folder, monkeypatch, tmp_path, command, change, words):
  shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
  monkeypatch.chdir(tmp_path)
  content = {name: value for name, value in {**SCENARIO, **change}.items() if value is not None}
  (tmp_path / 'scenario.json').write_text(json.dumps(content))
  refused(run, f'{command} --scenario=scenario.json', words)
