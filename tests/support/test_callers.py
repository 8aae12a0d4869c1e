"""Warnings point to the line of the user, however many functions of the package are between."""

import inspect
import warnings

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import callers
from tests import made

ENDLESS = dpftrl.MinSep(None, 1, 4)
TAIL = dpftrl.BLT((0.999999,), (0.9,))


class Failing(observer.Observer):
  def released(self, run, round_index, measurements):
    raise KeyError('none')


def opened(folder):
  dpftrl.Run(folder, made.claim(TAIL, participation=ENDLESS)).close()


def opened_sums(folder):
  made.aggregator(folder, 'identity').close()
  dpftrl.PrivateAggregator(
    TAIL,
    template=np.zeros(3),
    noise_multiplier=2.0,
    clip_norm=1.0,
    report_goal=2,
    participation=ENDLESS,
    folder=folder / 'endless',
  ).close()


def without_devices(folder):
  with dpftrl.Run(folder, made.claim(participation=made.SCHEMA)) as run:
    for _ in range(2):
      with run.round(['a']):
        pass


def observed(folder):
  with dpftrl.Run(folder, made.claim(), observers=[Failing()]) as run:
    with run.round(['a']) as round_:
      round_.released()


def too_many(folder):
  with made.aggregator(folder, 'identity', report_goal=1) as run:
    round_ = run.round(['a', 'b'])
    with round_:
      for device_id in 'ab':
        round_.add(np.ones(3), device_id=device_id)


@made.cases(
  'program, words',
  (opened, 'is for a last round'),
  (opened_sums, 'is for a last round'),
  (without_devices, 'admits no device'),
  (observed, 'released of round 0 raised KeyError'),
  (too_many, '2 updates for report_goal=1'),
)
def test_a_warning_names_the_line_of_the_user(tmp_path, program, words):
  lines, first = inspect.getsourcelines(program)
  with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter('always')
    program(tmp_path)
  (warning,) = (each for each in seen if words in str(each.message))
  assert warning.filename == __file__
  assert first < warning.lineno < first + len(lines)


@pytest.mark.tff
def test_a_warning_of_training_names_it_too(tmp_path):
  from tests.tff.training import small_runs

  with pytest.warns(UserWarning, match='is for a last round') as seen:
    small_runs.run(tmp_path, claim=made.claim(TAIL, participation=ENDLESS))
  assert [each.filename for each in seen] == [small_runs.__file__]


def test_a_stack_of_the_package_alone_is_no_error(monkeypatch):
  monkeypatch.setattr(callers, '_BETWEEN', ('',))
  with pytest.warns(UserWarning, match='words'):
    callers.warn('words')
