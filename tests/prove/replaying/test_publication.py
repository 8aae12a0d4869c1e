import dataclasses
import html
import json
import re
import shlex

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.commands import main
from fl_dpftrl.logs import log_tables
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.prove.replaying import opened_runs, replays, statements
from fl_dpftrl.prove.reports import privacy
from tests.prove.replaying.in_memory import log_of

MARK = 'MARKED'
# Fields of every published statement.
PUBLIC = (
  'num_rounds min_sep max_participations noise_multiplier strategy worst_case'
  ' declared delta adjacency group_size assumptions void_reason warnings confidential'
)
# Devices a and c have the same rounds but for where they begin; so have b and d.
ROWS = [(0, 'a'), (4, 'a'), (9, 'a'), (1, 'b'), (6, 'b'), (3, 'c')]


def write_log(path, rows=tuple(ROWS), metadata=None):
  """A log in which all that could tell of devices or places has a mark."""
  rows = sorted(rows)
  log_tables.write_log(
    path,
    rounds=[r for r, _ in rows],
    device_ids=[f'{MARK}-{d}' for _, d in rows],
    timestamps=[1_700_000_000 + 1000 * r for r, _ in rows],
    num_rounds=12,
    metadata=metadata,
  )


def published(path, tmp_path, *flags):
  """The public page and the statement in it."""
  page = tmp_path / 'public.html'
  run = [f'--log={path}', '--strategy=identity', '--noise_multiplier=3', '--delta=1e-6']
  arguments = ['replay', *run, f'--public_report={page}', '--json', *flags]
  try:
    main.main(arguments)
  except SystemExit as end:  # Some of the guarantees are void.
    assert end.code == 4
  text = page.read_text()
  data = re.search(r'<script[^>]*>(.*?)</script>', text).group(1)
  return text, json.loads(data)


@pytest.fixture(name='folder')
def fixture_folder(tmp_path):
  folder = tmp_path / f'{MARK}-host' / f'{MARK}-user'
  folder.mkdir(parents=True)
  return folder


@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
def test_nothing_of_rows_ids_or_places_is_published(folder, tmp_path, suffix, capsys):
  path, is_text = folder / f'{MARK}.{suffix}', suffix == 'csv'
  flags = ['--declared_num_rounds=15', '--declared_min_sep=3']
  if is_text:
    lines = [f'{r},{MARK}-{d}' for r, d in ROWS]
    path.write_text('\n'.join(['round,device_id', *lines, '']))
  else:
    write_log(
      path,
      metadata=run_claim.Claim(
        strategy='identity',
        noise_multiplier=4.0,
        void_reason=f'{MARK} was here',
        not_private_metrics=(MARK,),
      ).to_metadata(),
    )
  text, statement = published(path, tmp_path, *flags)
  assert MARK not in text
  printed = json.loads(capsys.readouterr().out)
  assert MARK in json.dumps(printed)
  for file in printed['log']:
    assert file['sha256'] not in text
  for name in ('1700', '2023-11', 'than the report goal of'):
    assert name not in text
  assert set(statement) == {*PUBLIC.split(), *(['num_rounds_assumed'] if is_text else [])}
  if is_text:
    assert 'does not say how many rounds' in text
  else:
    assert 'No guarantee' in text
    assert 'its log says so, or is of another run' in text


@pytest.mark.slow
@pytest.mark.parametrize(
  'flags',
  [[], ['--declared_num_rounds=15', '--declared_min_sep=3', '--delta=1e-8'], ['--group_size=2']],
)
def test_rows_of_other_devices_leave_the_report_as_it_is(folder, tmp_path, flags, capsys):
  pages = []
  other = [(t, {'c': 'z', 'b': 'a b'}.get(d, d)) for t, d in ROWS]
  # Device c is in the rounds of none before, and b in others; k, b and n stay.
  moved = [(0, 'a'), (4, 'a'), (9, 'a'), (2, 'q'), (11, 'q'), (2, 'p'), (5, 'o')]
  for name, rows in (('one', ROWS), ('two', other), ('three', moved)):
    path = folder / f'{name}.parquet'
    write_log(path, rows)
    pages.append(published(path, tmp_path, *flags)[0])
  assert pages[0] == pages[1] == pages[2]
  capsys.readouterr()


def test_several_runs_publish_no_names(folder, tmp_path, capsys):
  run_claim.Claim(strategy='identity', noise_multiplier=3.0).save(folder)
  files.save_strategy(folder / 'strategy.json', 'identity', schema=dpftrl.MinSep(12))
  write_log(folder / 'participation.parquet')
  page = tmp_path / 'public.html'
  main.main(['replay', str(folder), str(folder), '--delta=1e-6', f'--public_report={page}'])
  text = page.read_text()
  assert MARK not in text and 'log.parquet' not in text
  assert 'replay RUN1 RUN2' in text
  capsys.readouterr()


def test_a_new_field_is_not_published_by_itself():
  @dataclasses.dataclass(frozen=True, kw_only=True)
  class Longer(statements.Statement):
    brand_new: str

    def to_json(self):
      return {**super().to_json(), 'brand_new': self.brand_new}

  run = opened_runs.RecordedRun.of(log_of(ROWS, 12), identity.Identity(), noise_multiplier=3.0)
  whole = Longer(**vars(replays.replay(run, delta=1e-6)), brand_new=MARK)
  setting = privacy.Setting(
    run=MARK,
    command=f'replay --log={MARK}',
    strategy=f'/{MARK}/s.json',
    population=1,
    burnt_rounds=(7,),
  )
  text = privacy.report(whole.publishable(), setting)
  assert MARK not in text and 'burnt' not in text
  assert MARK in privacy.report(whole, setting)


def repeated(text, path, capsys, columns='', missing=''):
  """Runs the command on a published page; returns it, and its result."""
  capsys.readouterr()
  command = html.unescape(re.search('<pre>(fl-dpftrl replay.*?)</pre>', text).group(1))
  files = {'--log=LOG': f'--log={path}', '--strategy=STRATEGY': '--strategy=identity'}
  files |= {'--columns=COLUMNS': columns, '--missing=MARKS': missing}
  main.main([*(files.get(word, word) for word in shlex.split(command)[1:]), '--json'])
  return command, json.loads(capsys.readouterr().out)


def test_the_published_command_gives_the_published_figures(folder, tmp_path, capsys):
  path = folder / 'log.parquet'
  write_log(path)
  flags = ['--declared_num_rounds=20', '--declared_min_sep=4', '--delta=1e-8']
  text, statement = published(path, tmp_path, *flags, '--adjacency=replace_one')
  _, result = repeated(text, path, capsys)
  for part in ('worst_case', 'declared'):
    assert result[part] == statement[part]


def test_the_published_command_takes_logs_of_other_systems(tmp_path, capsys):
  path = tmp_path / 'log.csv'
  lines = [f'{r + 1},{d}' for r, d in ROWS]
  path.write_text('\n'.join([f'{MARK},who', *lines, '']))
  own = f'--columns=round={MARK},device_id=who', f'--missing={MARK}-none,null'
  text, statement = published(path, tmp_path, *own, '--first_round=1')
  assert MARK not in text
  command, result = repeated(text, path, capsys, *own)
  # The number of rounds was taken from the log, which is then to say it again.
  assert '--num_rounds' not in command and '--first_round=1' in command
  assert result['worst_case'] == statement['worst_case'] and result['num_rounds_assumed']
