"""Sites of NVFlare: what each sends, its rows, and one statement of all of them."""

import itertools
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from tests import made

adapter = pytest.importorskip('fl_dpftrl.adapters.nvflare', exc_type=ImportError)

ROOT = pathlib.Path(__file__).parents[2]
PEOPLE = [f'p{i}' for i in range(12)]
START = np.zeros(3, np.float32)


class Server:
  """Stands for NVFlare's server: it sends models, and keeps what a site sends."""

  def __init__(self, monkeypatch, models):
    self._models, self.sent = iter(models), []
    for name in ('init', 'is_running', 'receive', 'send'):
      monkeypatch.setattr(adapter.client, name, getattr(self, name))

  def init(self):
    self._next = next(self._models, None)

  def is_running(self):
    return self._next is not None

  def receive(self):
    received, self._next = self._next, next(self._models, None)
    return types.SimpleNamespace(params={'w': received})

  def send(self, model):
    self.sent.append(model)


def site(folder, **options):
  """Returns the aggregator of a site without noise."""
  options = {'noise_multiplier': 0.0, 'report_goal': 4, **options}
  return made.aggregator(folder, dpftrl.BLT([0.7], [0.5]), template={'w': START}, **options)


def test_a_site_sends_the_model_plus_the_mean_of_bounded_updates(tmp_path, monkeypatch):
  server = Server(monkeypatch, [START, START + 5.0])
  with site(tmp_path) as aggregator:
    with pytest.raises(TypeError, match='at_leats'):  # Before any round.
      adapter.answer_rounds(aggregator, PEOPLE, lambda model, person: model, at_leats=3)
    adapter.answer_rounds(aggregator, PEOPLE, lambda model, person: {'w': np.float32([9, 0, 0])})
  first, second = (sent.params['w'] for sent in server.sent)
  np.testing.assert_allclose(first, [1, 0, 0], atol=1e-5)
  np.testing.assert_allclose(second, [6, 5, 5], atol=1e-5)
  assert {tuple(sent.meta.values()) for sent in server.sent} == {(1,)}


def test_a_repeated_round_uses_another_row(tmp_path, monkeypatch):
  server = Server(monkeypatch, [START] * 3)
  with site(tmp_path, noise_multiplier=2.0, noise_seed=3) as aggregator:
    adapter.answer_rounds(aggregator, PEOPLE, lambda model, person: {'w': START})
    assert aggregator.next_round == 3
  rows = [sent.params['w'].tolist() for sent in server.sent]
  assert len({tuple(row) for row in rows}) == 3


def test_a_site_that_may_not_take_part_sends_the_model_as_it_came(tmp_path, monkeypatch):
  models = [np.float32([t, 0, 0]) for t in range(6)]
  server = Server(monkeypatch, models)
  schema = dpftrl.MinSep(num_rounds=4, min_sep=3, max_participations=1)
  with site(tmp_path, participation=schema, noise_multiplier=1.0) as aggregator:
    adapter.answer_rounds(aggregator, PEOPLE, lambda model, person: {'w': START})
    assert aggregator.next_round == 3  # All twelve took part once; no row is used for nothing.
  for model, sent in itertools.islice(zip(models, server.sent), 3, None):
    assert sent.params['w'].tolist() == model.tolist() and not sent.metrics


def test_a_site_that_was_killed_as_it_sent_its_last_round_answers_as_a_live_one(
  tmp_path, monkeypatch
):
  schema = dpftrl.MinSep(num_rounds=1, max_participations=1)
  server, killed = Server(monkeypatch, [START]), KeyboardInterrupt()

  def send(model):
    raise killed

  monkeypatch.setattr(adapter.client, 'send', send)
  options = dict(participation=schema, noise_multiplier=1.0)
  update = lambda model, person: {'w': START}
  with site(tmp_path, **options) as aggregator, pytest.raises(KeyboardInterrupt):
    adapter.answer_rounds(aggregator, PEOPLE, update)
  server = Server(monkeypatch, [START, START + 1.0])
  with site(tmp_path, **options) as aggregator:
    adapter.answer_rounds(aggregator, PEOPLE, update)
  assert [sent.params['w'].tolist() for sent in server.sent] == [[0, 0, 0], [1, 1, 1]]


def test_a_failed_update_uses_its_row_up_and_the_site_goes_on(tmp_path, monkeypatch):
  def fail(model, person):
    raise OSError('disk full')

  server = Server(monkeypatch, [START])
  with site(tmp_path, noise_multiplier=1.0) as aggregator, pytest.raises(OSError):
    adapter.answer_rounds(aggregator, PEOPLE, fail)
  assert not server.sent
  Server(monkeypatch, [START])
  with site(tmp_path, noise_multiplier=1.0) as aggregator:
    assert aggregator.next_round == 1
    adapter.answer_rounds(aggregator, PEOPLE, lambda model, person: {'w': START})
  assert dpftrl.replay(tmp_path, delta=1e-6).num_rounds == 2


@pytest.mark.slow
def test_two_sites_in_the_simulator_have_one_statement(tmp_path):
  command = [sys.executable, 'examples/nvflare_site.py', '--simulate', f'--folder={tmp_path}']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
  assert done.returncode == 0, done.stderr[-2000:]
  sites = [tmp_path / 'site-1', tmp_path / 'site-2']
  statement = dpftrl.replay(sites, delta=1e-5, disjoint=True)
  assert statement.declared.holds and statement.declared.guarantee.epsilon() <= 8.0
  assert [run.num_rounds for run in statement.runs] == [5, 5]
  model = np.load(tmp_path / 'nvflare' / 'fedavg/server/simulate_job/models/server.npy')
  assert model.shape == (5,) and np.corrcoef(model[:4], np.linspace(-1, 1, 4))[0, 1] > 0.5
