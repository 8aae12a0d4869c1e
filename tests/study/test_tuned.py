"""The best of a secret number of runs: what is drawn, published, withheld and refused."""

import json
import math
import shutil

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl
from fl_dpftrl.study import HeldOut, Winner, designs, tuned
from tests.study import linear

LAW = dpftrl.Tuning({2: 0.5, 4: 0.5})
PUBLISHED = {'study.json', 'strategies', 'tuning.json', 'winner.json', 'model.npz'}


def tune(run, folder, **options):
  rates = {'server_learning_rates': (0.5, 1.0, 2.0), 'epsilons': [4.0]}
  options = {'tuning': LAW, 'score': 'public', **rates, **options}
  return dpftrl.study(
    run,
    folder=folder,
    mechanisms=['identity', 'banded:2'],
    participation=linear.SCHEMA,
    clip_norm=1.0,
    report_goal=40,
    without_noise=False,
    **{'jobs': 0, 'say': lambda line: None, **options},
  )


def saved(cell):
  """Trains a cell, and writes its model."""
  found = linear.train(cell)
  cell.folder.mkdir()
  np.savez(cell.folder / 'model.npz', seed=cell.seed)
  return found


class Recorder:
  """A run that remembers its cells and what they returned."""

  def __init__(self, ends=()):
    self.cells, self._ends = [], list(ends)

  def __call__(self, cell):
    end = self._ends.pop(0) if self._ends else None
    if end is KeyboardInterrupt:
      raise end
    found = saved(cell)
    if isinstance(end, Exception):
      self.cells.append((cell, None))
      raise end
    if end == 'no model':
      (cell.folder / 'model.npz').unlink()
    self.cells.append((cell, found['validation']['accuracy']))
    return found


def names(folder):
  return {path.name for path in folder.iterdir() if not path.name.endswith('lock')}


def test_the_best_run_alone_is_published(tmp_path):
  run = Recorder()
  found = tune(run, tmp_path / 'tuned')
  best, score = max(run.cells, key=lambda each: each[1])
  assert isinstance(found, Winner) and len(run.cells) in (2, 4)
  assert found.score == score == max(value for _, value in run.cells)
  assert (found.mechanism, found.server_learning_rate) in {
    (cell.setting.label, cell.server_learning_rate) for cell, value in run.cells if value == score
  }
  assert names(tmp_path / 'tuned') == PUBLISHED
  assert len({cell.seed for cell, _ in run.cells}) == len(run.cells)
  with np.load(found.model) as model:
    assert int(model['seed']) in {cell.seed for cell, value in run.cells if value == score}
  one = dpftrl.account('identity', linear.SCHEMA, noise_multiplier=1.0, delta=1e-6)
  assert best.noise.epsilon <= 4.0 < found.epsilon < LAW.epsilon(one) + 9.0
  assert 'best of a secret random number of runs' in found.sentence
  assert 'with a clock in sight, report at a fixed time, enough for the most runs' in (
    ' '.join(found.assumptions)
  )
  assert f'one run alone has {best.noise.epsilon:.4g}'[:20] in found.sentence
  again = Recorder()
  assert tune(again, tmp_path / 'tuned') == found and not again.cells
  text = (tmp_path / 'tuned' / 'winner.json').read_text()
  assert str(len(run.cells)) not in json.loads(text) and 'secret/' not in text


@pytest.mark.slow
def test_cells_with_other_noise_count_as_those_with_the_least(tmp_path):
  found = {e: tune(saved, tmp_path / str(e), epsilons=e).epsilon for e in ((1, 4), (1,), (4,))}
  assert found[1, 4] == found[4,] > found[1,] + 1.0


def test_law_and_grid_are_written_first_and_never_changed(tmp_path):
  folder = tmp_path / 'tuned'

  def run(cell):
    plan = json.loads((folder / 'tuning.json').read_text())
    assert plan['tuning'] == {'law': {'2': 0.5, '4': 0.5}, 'mean': 0.0, 'most': 4}
    assert len(plan['grid']) == 6 and len(plan['digest']) == 64
    return saved(cell)

  found, text = tune(run, folder), (folder / 'tuning.json').read_text()
  assert found.model and found.digest == json.loads(text)['digest']
  for change in (
    {'server_learning_rates': (0.5, 1.0, 2.0, 4.0)},
    {'tuning': dpftrl.Tuning('geometric', 3)},
    {'score': HeldOut(num_users=9, noise_multiplier=2.0)},
  ):
    with pytest.raises(ValueError, match='of another law, grid or score'):
      tune(saved, folder, **change)


def test_an_interrupted_study_goes_on_with_the_same_draws(tmp_path):
  folder, first = tmp_path / 'tuned', Recorder(ends=[None, KeyboardInterrupt])
  with pytest.raises(KeyboardInterrupt):
    tune(first, folder)
  secret = folder / 'secret'
  assert names(folder) == PUBLISHED - {'winner.json', 'model.npz'} | {'secret'}
  assert secret.stat().st_mode & 0o077 == 0 and names(secret) == {'draws.json', 'runs'}
  draws = json.loads((secret / 'draws.json').read_text())
  second = Recorder()
  found = tune(second, folder)
  done = [*first.cells, *second.cells]
  assert [cell.seed for cell, _ in done] == [seed for _, seed in draws]
  assert found.score == max(value for _, value in done) and not secret.exists()


def test_lost_draws_are_not_drawn_again(tmp_path, monkeypatch):
  folder = tmp_path / 'tuned'
  with monkeypatch.context() as patched:  # A start that was cut short is made again.
    patched.setattr(tuned, '_drawn', lambda *unused: 1 / 0)
    with pytest.raises(ZeroDivisionError):
      tune(saved, folder)
  with pytest.raises(KeyboardInterrupt):
    tune(Recorder(ends=[None, KeyboardInterrupt]), folder)
  shutil.rmtree(folder / 'secret')
  with pytest.raises(ValueError, match='its draws are gone'):
    tune(saved, folder)


def test_a_winner_is_chosen_once_whatever_crashes(tmp_path, monkeypatch):
  """Noise of the score is drawn once; a model is not there before its winner is fixed."""
  folder, score = tmp_path / 'tuned', HeldOut(num_users=9, noise_multiplier=50.0)
  written, original = [], tuned.durable.write_durably

  def crash(path, data, **options):
    if path == folder / 'winner.json' and not written:
      written.append(json.loads((folder / 'secret' / 'winner.json').read_text())[0])
      raise KeyboardInterrupt
    original(path, data, **options)

  monkeypatch.setattr(tuned.durable, 'write_durably', crash)
  with pytest.raises(KeyboardInterrupt):
    tune(saved, folder, score=score)
  again = Recorder()
  found = tune(again, folder, score=score)
  assert (found.score, found.mechanism) == (written[0]['score'], written[0]['mechanism'])
  assert not again.cells and names(folder) == PUBLISHED


def test_runs_that_fail_count_as_the_worst(tmp_path):
  run = Recorder(ends=['no model'])
  found = tune(run, tmp_path / 'one', tuning=dpftrl.Tuning({2: 1.0}))
  assert found.score == run.cells[1][1]
  # An error that ended the study would let the next call repeat the run.
  for error in (RuntimeError('NaN'), ValueError('of a device'), AttributeError('step')):
    run = Recorder(ends=[error])
    found = tune(run, tmp_path / type(error).__name__, tuning=dpftrl.Tuning({2: 1.0}))
    assert found.score == run.cells[1][1] and len(run.cells) == 2
  for value, taken in ((7.0, 1.0), (-math.inf, 0.0), (math.nan, 0.0)):  # Of a held-out user.
    strange = lambda cell: saved(cell) | {'validation': {'accuracy': value}}  # noqa: B023
    assert tune(strange, tmp_path / f'{value}').score == taken
  none = tune(Recorder(ends=['no model'] * 4), tmp_path / 'all')
  assert (none.mechanism, none.score, none.model) == (None, None, None)
  assert names(tmp_path / 'all') == PUBLISHED - {'model.npz'} and none.epsilon is not None


@pytest.mark.slow
def test_runs_in_processes_of_their_own(tmp_path):
  """A rate above 5 makes a run fail, which nobody is told."""
  two = dpftrl.Tuning({2: 1.0})
  found = tune(saved, tmp_path / 'tuned', jobs=2, server_learning_rates=(1.0, 9.0), tuning=two)
  assert found.server_learning_rate in (1.0, None) and 'secret' not in names(tmp_path / 'tuned')


def test_numbers_and_cells_are_drawn_by_the_law(tmp_path):
  law = dpftrl.Tuning('geometric', 3, 12)
  one = designs.Design(
    title='t', mechanisms=['identity'], epsilons=[1.0], server_learning_rates=[1, 2, 3], seeds=[0],
    participation=linear.SCHEMA, clip_norm=1.0, report_goal=4, delta=1e-6, without_noise=False,
  )  # fmt: skip
  counts, rates = np.zeros(12), []
  for number in range(600):
    folder = tmp_path / str(number)
    folder.mkdir()
    cells = tuned._drawn(one, {one.settings[0]: None}, folder, law)
    counts[len(cells) - 1] += 1
    rates += [cell.server_learning_rate for cell in cells]
  assert stats.chisquare(counts, 600 * law.chances).pvalue > 1e-6
  assert stats.chisquare(np.unique(rates, return_counts=True)[1]).pvalue > 1e-6


def test_held_out_users_have_noise_and_a_part_in_epsilon():
  score = HeldOut(num_users=50, noise_multiplier=4.0)
  drawn = np.array([score.noised(0.25) for _ in range(2000)])
  accepted = lambda sigma: stats.chi2(2000).cdf(((drawn - 0.25) ** 2).sum() / sigma**2)
  assert 1e-6 < accepted(0.08) < 1 - 1e-6
  assert accepted(0.08 * 2 / 3) > 1 - 1e-9 and accepted(0.08 * 1.5) < 1e-9
  assert HeldOut(num_users=50, noise_multiplier=0.0).noised(0.25) == 0.25
  one = dpftrl.Guarantee(
    sensitivity=1.0, sensitivity_kind='exact', noise_multiplier=1.0, deltas=(1e-6,)
  )
  law, noise = dpftrl.Tuning('geometric', 10, 400), 1 / 0.3
  same = HeldOut(num_users=50, noise_multiplier=noise).with_training(one)
  assert law.epsilon(same) == pytest.approx(7.25, abs=0.02)
  other = HeldOut(num_users=50, noise_multiplier=noise, disjoint=True).with_training(one)
  assert law.epsilon(other) == pytest.approx(law.epsilon(one), rel=1e-9)
  loud = HeldOut(num_users=50, noise_multiplier=0.5, disjoint=True).with_training(one)
  assert loud.mu == pytest.approx(2.0, rel=1e-5) and loud.mu > 2.0
  many = HeldOut(num_users=10**6, noise_multiplier=0.5, disjoint=True).with_training(one)
  assert 2.1 < many.mu < 2.2  # A mean in float32 is off by more than a user of a million.


def test_times_of_files_do_not_tell_how_long_it_took_and_folders_are_not_shared(tmp_path):
  folder = tmp_path / 'tuned'
  tune(saved, folder)
  published = [folder / name for name in ('tuning.json', 'winner.json', 'model.npz')]
  assert len({path.stat().st_mtime for path in published}) == 1
  with pytest.raises(ValueError, match='holds a tuned study'):
    tune(linear.train, folder, tuning=None, score=None)
  (tmp_path / 'plain' / 'cells').mkdir(parents=True)
  (tmp_path / 'plain' / 'study.json').write_text('{"conditions": {}, "noise": {}}')
  with pytest.raises(ValueError, match='not tuned'):
    tune(saved, tmp_path / 'plain')
  with pytest.raises(ValueError, match='0.001 to 1e9'):
    HeldOut(num_users=2, noise_multiplier=1e-9)


def test_a_private_score_without_noise_guarantees_nothing(tmp_path):
  found = tune(saved, tmp_path / 'tuned', score=HeldOut(num_users=9, noise_multiplier=0.0))
  assert found.epsilon is None and found.sentence.startswith('no ε holds for the held-out users')
  assert math.isfinite(found.score)
  score = HeldOut(num_users=9, noise_multiplier=4.0, disjoint=True)
  assert (
    'none of the held-out users trains' in tune(saved, tmp_path / 'two', score=score).assumptions
  )


@pytest.mark.parametrize(
  'change, words',
  [
    ({'seeds': (0, 1)}, 'seeds is refused with tuning'),
    ({'cell': 0}, 'cell is refused with tuning'), ({'jobs': -1}, 'jobs is refused'),
    ({'without_noise': True}, 'without_noise is refused'),
    ({'score': None}, "score must be 'public' or a HeldOut"),
    ({'tuning': None}, 'tuning must be a Tuning'),
    ({'tuning': 'geometric:10'}, 'tuning must be a Tuning'),
    ({'participation': dpftrl.SecretBins(8, 4)}, 'participation is refused'),
    ({'score': HeldOut(num_users=2, noise_multiplier=1.0), 'tuning': None}, 'must be a Tuning'),
    ({'deployment_report_goal': 400}, 'deployment_report_goal is refused'),
    ({'metric': 'loss', 'lower_is_better': True, 'score': HeldOut(num_users=2, noise_multiplier=1)},
     'must be an accuracy'),
  ],
)  # fmt: skip
def test_what_would_choose_from_results_is_refused(tmp_path, change, words):
  options = {
    'folder': tmp_path / 'tuned', 'mechanisms': ['identity'], 'epsilons': [4.0],
    'participation': linear.SCHEMA, 'clip_norm': 1.0, 'report_goal': 40, 'without_noise': False,
    'tuning': LAW, 'score': 'public', 'jobs': 0, **change,
  }  # fmt: skip
  with pytest.raises(ValueError, match=words):
    dpftrl.study(saved, **options)
  assert not (tmp_path / 'tuned').exists()
