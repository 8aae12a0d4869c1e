"""Made-up people of a run: who takes part when, what is told apart, and what is refused."""

import pathlib

import numpy as np
import pytest

from experiments import secret_twins
from experiments.stackoverflow import configuration, datasets, networks, run, secret_texts
from fl_dpftrl.support.files import mark
from tests.experiments import runs

pytestmark = pytest.mark.tff

FLAGS = [*runs.SEEDED, '--max_sentences=5', '--secrets=10']


def drawn(
  folder: pathlib.Path, *flags: str
) -> tuple[configuration.Hparams, datasets.Dataset, object]:
  hparams = configuration.from_arguments([*FLAGS, *flags])
  dataset = datasets.load('synthetic', seed=3)
  return hparams, dataset, secret_texts.drawn(hparams, dataset, folder)


def test_secrets_of_a_name_differ_in_their_last_words(tmp_path):
  _, dataset, people = drawn(tmp_path)
  rows, vocabulary = people.secrets, dataset.vocabulary
  assert rows.shape == (10, 2 + 48, 11) and (rows[..., 0] == vocabulary.bos).all()
  assert vocabulary.counted(rows[..., 1:9]).all() and (rows[..., 9] == vocabulary.eos).all()
  assert (rows[..., 1:5] == rows[:, :1, 1:5]).all()
  assert all(len(np.unique(name, axis=0)) == 50 for name in rows)
  assert len(people.data.train_clients) == 510
  assert (people.data.sentences('secret 4') == np.tile(rows[4, 0], (5, 1))).all()
  assert people.data.sentences('device00004') is not None
  other = drawn(tmp_path)[2]
  assert (other.secrets != rows).any()  # There is no key in the folder.


def test_coins_are_fair():
  tossed = secret_twins.tossed(np.tile([0, 1, 2], (1000, 1)), np.random.default_rng(0))
  assert 450 < tossed[:, 0].sum() < 550 and (tossed[:, 0] + tossed[:, 1] == 1).all()


def test_people_keep_the_min_sep_beside_the_same_cohorts_and_the_key_is_stored(tmp_path):
  (tmp_path / 'checkpoints').mkdir()
  hparams, dataset, people = drawn(tmp_path)
  scenario = run.scenario(hparams, len(dataset.train_clients))
  turns = {name: [] for name in people.data.train_clients[-10:]}
  for cohort, plain in zip(people.rounds(scenario), scenario.simulation().rounds()):
    if cohort.round == hparams.num_rounds:
      break
    names = cohort.device_ids.tolist()
    assert names[:6] == [dataset.train_clients[i] for i in plain.device_ids]
    for name in names[6:]:
      turns[name].append(cohort.round)
  assert all(turns[f'secret {i}'] == [i % 4, i % 4 + 4, i % 4 + 8] for i in range(10))
  path = tmp_path / 'checkpoints/secrets.key'
  assert path.read_bytes() == people.key and path.stat().st_mode & 0o077 == 0
  again = drawn(tmp_path)[2]
  assert again.key == people.key and (again.secrets == people.secrets).all()
  path.unlink()
  (tmp_path / 'checkpoints/round-000000000.npz').touch()
  drawn(tmp_path)  # A run that was interrupted before its first round.
  (tmp_path / 'checkpoints/round-000000010.npz').touch()
  with pytest.raises(mark.LostStateError, match='secrets.key is gone'):
    drawn(tmp_path)


def test_falls_of_the_secrets_words_tell_twins_apart(tmp_path):
  _, dataset, people = drawn(tmp_path)
  network = networks.LogBilinear(num_tokens=dataset.vocabulary.size, embedding=8)
  before = network.initial_weights(0)
  generator = np.random.default_rng(1)
  after = tuple(w + generator.normal(size=w.shape).astype(np.float32) for w in before)
  rows, losses = people.secrets.reshape(-1, 11), []
  for weights in (before, after):
    logits = np.float64(network.logits([*map(np.float32, weights)], rows[:, :-1]))
    logits -= np.log(np.exp(logits).sum(axis=2, keepdims=True))
    targets = np.take_along_axis(logits, rows[:, 1:, None].astype(int), axis=2)[..., 0]
    losses.append(-targets[:, 4:8].sum(axis=1))  # Neither of the name nor of the end.
  expected = secret_twins.told_apart((losses[0] - losses[1]).reshape(10, 50))
  result = people.remembered(network, before, after)
  assert result == expected and 0.0 < result['accuracy'] < 1.0


def test_figures_are_those_of_a_count_by_hand():
  falls = np.zeros((4, 2 + 3))
  falls[:, 0], falls[3, 1], falls[0, 2:] = 1.0, 2.0, (0.5, 1.0, 3.0)
  result = secret_twins.told_apart(falls)
  assert result['num_secrets'] == 4 and result['accuracy'] == 0.75
  assert result['interval'] == pytest.approx([0.1941, 0.9937], abs=1e-4)  # Clopper and Pearson
  assert result['exposure'] == pytest.approx(np.log2(13 / 3))  # Only 1.0 and 3.0 are not below.
  assert '75 % of 4 twins told apart (95 %: 19 to 99 %)' in secret_twins.words(result)
  diverged = secret_twins.told_apart(np.full((4, 5), np.nan))
  assert (diverged['accuracy'], diverged['lower_mu'], diverged['exposure']) == (0.0, 0.0, 0.0)
  perfect = secret_twins.told_apart(np.eye(100, 12)[:1].repeat(100, axis=0))
  assert perfect['accuracy'] == 1.0 and 0.85 < perfect['lower_mu'] < 0.86


@pytest.mark.parametrize(
  'flags, words',
  [
    (['--secrets=-1'], '--secrets=-1 must be at least 0'),
    (['--secrets=25'], '--secrets=25 must be at most 24'),
    (['--timer_rounds=13'], '--secrets=10 needs --timer_rounds, of at most --num_rounds'),
    (
      ['--strategy=blt-b40-endless', '--max_participations=2', '--loss_budget']
      + ['--mechanism=blt', '--warmup_fraction=0', '--cooldown_fraction=0'],
      'no --loss_budget',
    ),
  ],
)
def test_what_made_up_people_cannot_keep_is_refused(flags, words):
  with pytest.raises(ValueError, match=words):
    configuration.from_arguments([*FLAGS, *flags])


def test_no_min_sep_is_refused():
  flags = [flag for flag in FLAGS if not flag.startswith('--timer_rounds')]
  for given in ([], ['--timer_hours=5']):
    with pytest.raises(ValueError, match='--secrets=10 needs --timer_rounds'):
      configuration.from_arguments([*flags, *given])


@pytest.mark.slow
def test_a_run_says_what_it_remembers_beside_the_run_without_noise(tmp_path, capsys):
  silent, folder = tmp_path / 'silent', tmp_path / 'run'
  words = {}
  for path, others in ((silent, ['--noise_multiplier=0']), (folder, [f'--compare_with={silent}'])):
    if path == folder:
      runs.killed(folder, 'published', 6, base=FLAGS)
      given = f'--output_dir={folder}', '--resume'
      line = runs.refused(capsys, *FLAGS, '--secrets=9', *given)
      assert '--secrets=9 differs from the run' in line and 'which has 10' in line
      key = (folder / 'checkpoints/secrets.key').read_bytes()
    out, _ = runs.finish(path, *others, base=FLAGS)
    label = f'Secrets with{"" if path == folder else "out"} noise'
    words[label] = secret_twins.words(runs.read(path, 'summary.json')['secrets_remembered'])
    lines = [line.partition('   ') for line in out.splitlines() if line.startswith('Secrets')]
    assert {label: text.strip() for label, _, text in lines} == words
    assert (path / 'secrets.png').read_bytes().startswith(b'\x89PNG')
  assert (folder / 'checkpoints/secrets.key').read_bytes() == key
  assert 'of 510 devices, 10 of them made-up people' in out
  assert '10 made-up people are beside' in (folder / 'privacy.html').read_text()
  devices = [row['device_id'] for row in runs.log(folder)[0]]
  assert all(devices.count(f'secret {i}') == 3 for i in range(10)) and len(devices) == 12 * 6 + 30
