"""A run's folder: held before it is written, resumed, interrupted, diverged."""

import json
import pathlib
import shutil

import pytest

from experiments.stackoverflow import evaluate, report
from tests import leaks
from tests.experiments import runs

pytestmark = [pytest.mark.tff, pytest.mark.slow]


def train(folder: pathlib.Path, *flags: str, **kwargs) -> tuple[int, str, str]:
  return runs.ended(runs.start(folder, *flags, **kwargs))


@pytest.fixture(name='copy')
def fixture_copy(undisturbed, tmp_path) -> pathlib.Path:
  return shutil.copytree(undisturbed.folder, tmp_path / 'run')


def contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_a_diverged_run_ends_and_says_so(tmp_path):
  folder = tmp_path / 'diverged'
  flags = ('--server_learning_rate=3e38', '--client_learning_rate=1e30', '--num_rounds=2')
  code, out, err = train(folder, *flags)
  assert code == 0, err
  assert 'THE RUN DIVERGED' in out and 'Guarantee of this run' in out
  summary = json.loads((folder / 'summary.json').read_text(), parse_constant=pytest.fail)
  assert summary['test']['loss'] is None
  assert summary['diverged_since_round'] is not None
  flags = evaluate.read_hparams(folder).to_json()
  assert report.accuracy_without_noise(flags, folder) == f'not known; {folder} differs in noise'


def test_a_state_of_another_type_is_not_quoted_by_a_round(killed, tmp_path):
  folder = shutil.copytree(killed, tmp_path / 'run')
  secrets = leaks.spoil(folder)
  code, out, err = train(folder)
  assert code == 1 and 'failed: state.aggregator.noise.seed: expected' in err, err
  assert not secrets.found_in(out + err), err


def test_a_run_without_its_flags_is_told_what_is_missing(copy, capsys):
  (copy / 'hparams.json').unlink()
  line = runs.refused(capsys, *runs.FLAGS, f'--output_dir={copy}', '--resume')
  assert 'holds a run without hparams.json' in line and 'put that file back' in line
  with pytest.raises(ValueError, match=r'hparams\.json is missing.*name the output folder'):
    evaluate.read_hparams(copy)


def test_an_edited_clip_norm_is_refused(copy):
  parameters = runs.read(copy, 'hparams.json')
  edited = json.dumps({**parameters, 'clip_norm': 0.01}, indent=2) + '\n'
  (copy / 'hparams.json').write_text(edited)
  before = contents(copy)
  code, out, err = train(copy, '--clip_norm=0.01')
  (told,) = [line for line in err.splitlines() if line.startswith('train: ')]
  assert code == 2 and not out and 'clip_norm' in told and str(copy) in told, err
  after = contents(copy)
  assert {path: after[path] for path in before} == before


def test_a_disk_without_room_is_one_line_at_once(tmp_path, monkeypatch, capsys):
  usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
  line = runs.refused(capsys, *runs.FLAGS, f'--output_dir={tmp_path / "run"}', status=1)
  assert line == f"train: [Errno 28] No space left on device: '{tmp_path / 'run'}'"
  assert not list(tmp_path.iterdir())
