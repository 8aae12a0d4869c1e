"""Names of metrics without noise, from a log's metadata to the statement."""

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import replay_text
from fl_dpftrl.logs import metric_names
from fl_dpftrl.replaying import publication
from fl_dpftrl.reports import privacy

NAMES = ('client_work.train.loss', 'aggregator.<clipped>')


def stated(folder, metadata):
  path = folder / 'log.parquet'
  with dpftrl.LogWriter(path, metadata=metadata) as log:
    log.append(0, ['a'], 1_000)
    log.append(1, ['b'], 2_000)
  run = dpftrl.open_run(path, dpftrl.Identity(), noise_multiplier=1.0)
  return dpftrl.replay(run, deltas=1e-6)


def test_a_statement_and_its_report_name_them(tmp_path):
  statement = stated(tmp_path, metric_names.metadata(NAMES))
  assert statement.not_private_metrics == NAMES
  assert statement.to_json()['not_private_metrics'] == list(NAMES)
  assert 'client_work.train.loss, aggregator.<clipped>' in replay_text.text(statement)
  page = privacy.report(statement, privacy.Setting(run='r', command='c', noise_multiplier=1.0))
  assert '<code>client_work.train.loss</code>' in page
  assert '<code>aggregator.&lt;clipped&gt;</code>' in page
  assert publication.publishable(statement).not_private_metrics == ()


def test_operations_that_were_trusted_are_an_assumption(tmp_path):
  statement = stated(tmp_path, metric_names.metadata(['PyFunc'], metric_names.TRUSTED_KEY))
  (sentence,) = [one for one in statement.assumptions if 'PyFunc' in one]
  assert 'whoever trained stated it' in sentence
  assert statement.to_json()['trusted_operations'] == ['PyFunc']
  assert sentence in publication.publishable(statement).assumptions


def test_a_log_without_them_says_nothing(tmp_path):
  assert metric_names.metadata(()) == {}
  statement = stated(tmp_path, {})
  assert statement.not_private_metrics == ()
  assert 'not_private_metrics' not in statement.to_json()
  assert 'metrics without the noise' not in replay_text.text(statement)
