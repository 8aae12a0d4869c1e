"""Small runs, claims and logs. A test states what matters to it; defaults are what any would do."""

import pathlib
import shutil

import numpy as np
import pytest

import fl_dpftrl as dpftrl

BLT = dpftrl.BLT((0.9, 0.5), (0.3, 0.2))
SCHEMA = dpftrl.MinSep(num_rounds=12, min_sep=2)


def cases(names: str, *rows, **options) -> pytest.MarkDecorator:
  """`pytest.mark.parametrize` of a table, of which each row is an argument."""
  return pytest.mark.parametrize(names, rows, **options)


def claim(strategy=BLT, **attributes) -> dpftrl.Claim:
  """A claim with a noise multiplier of 2, and with no participation unless one is given."""
  return dpftrl.Claim(strategy=strategy, **dict(noise_multiplier=2.0) | attributes)


def aggregator(folder, strategy=BLT, **arguments) -> dpftrl.PrivateAggregator:
  """An aggregator of three coordinates and two devices a round, clipped to 1, with noise of 2."""
  defaults = dict(template=np.zeros(3), noise_multiplier=2.0, clip_norm=1.0, report_goal=2)
  return dpftrl.PrivateAggregator(strategy, folder=folder, **defaults | arguments)


def factory(strategy=BLT, **arguments) -> 'dpftrl.CorrelatedNoiseFactory':
  """A factory for processes of TFF, of two devices a round, clipped to 1, with noise of 2."""
  defaults = dict(noise_multiplier=2.0, clip_norm=1.0, report_goal=2)
  return dpftrl.CorrelatedNoiseFactory(strategy, **defaults | arguments)


def release(aggregator, device_ids, update=None, **options):
  """Runs a round in which each device adds one update, ones if none is given; returns the round."""
  update = np.ones(3) if update is None else update
  with aggregator.round(list(device_ids), **options) as round_:
    for device_id in device_ids:
      round_.add(update, device_id=device_id)
  return round_


def log(path, cohorts, **options) -> pathlib.Path:
  """Writes the log of rounds 0, 1, … with these devices; returns its path."""
  rounds = [t for t, cohort in enumerate(cohorts) for _ in cohort]
  device_ids = [device_id for cohort in cohorts for device_id in cohort]
  columns = dict(rounds=rounds, device_ids=device_ids, num_rounds=len(cohorts))
  dpftrl.write_log(path, **columns | options)
  return pathlib.Path(path)


def ledger(path, cohorts, claim=None) -> pathlib.Path:
  """Writes such a log as a run does, through a ledger, with a claim; returns its path."""
  with dpftrl.LogWriter(path, claim) as writer:
    for t, cohort in enumerate(cohorts):
      writer.append(t, cohort, 86_400 + t)
  return pathlib.Path(path)


def named_population(folder, **options) -> dpftrl.Population:
  """Opens the population of a folder, whose logs hold random names in place of ids."""
  files = dict(names=folder / 'names' / 'names.db', salt=folder / 'keys' / 'salt')
  return dpftrl.Population(folder / 'fleet', **files, **options)


def holding(folder: pathlib.Path, text: str) -> list[str]:
  """Returns the names of the files below a folder that hold a text."""
  files = [path for path in folder.rglob('*') if path.is_file()]
  return [path.name for path in files if text.encode() in path.read_bytes()]


def copies_around(folder: pathlib.Path, steps, act) -> list[pathlib.Path]:
  """Returns copies of a folder, beside it, from before and after each of some calls in an act."""
  copies = []

  def around(step):
    def stepped(*args, **kwargs):
      copies.append(shutil.copytree(folder, folder.with_name(f'at {len(copies)}')))
      result = step(*args, **kwargs)
      copies.append(shutil.copytree(folder, folder.with_name(f'at {len(copies)}')))
      return result

    return stepped

  with pytest.MonkeyPatch.context() as patch:
    for owner, name in steps:
      patch.setattr(owner, name, around(getattr(owner, name)))
    act()
  assert len(copies) >= 6
  return copies
