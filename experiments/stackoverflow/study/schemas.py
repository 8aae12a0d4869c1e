"""Participation schema for which the noise of a setting is calibrated."""

import dataclasses
import functools
import itertools

from experiments.stackoverflow import configuration, datasets, setting
from fl_dpftrl.participation import schemas, seen


def schema(hparams: configuration.Hparams, seeds: tuple[int, ...]) -> schemas.MinSep:
  """Returns a schema that every run of a setting keeps to.

  A timer in rounds enforces its min-sep. A timer in hours enforces none: how
  many rounds pass meanwhile follows from the population. Cohorts follow from
  flags and seed alone, and neither from the text nor from training. So they are
  simulated beforehand, and the schema is the tightest for all seeds.

  Args:
    hparams: flags of the setting.
    seeds: seeds of its runs.

  Raises:
    ValueError: for flags that do not fit the data, or a simulation that stalls.
  """
  if hparams.timer_hours is None:
    return setting.enforced_schema(hparams)
  found = [_simulated(dataclasses.replace(hparams, seed=seed)) for seed in seeds]
  return schemas.MinSep(
    num_rounds=hparams.num_rounds,
    min_sep=min(schema.min_sep for schema in found),
    max_participations=max(schema.participations for schema in found),
  )


@functools.lru_cache(maxsize=128)
def _simulated(hparams: configuration.Hparams) -> schemas.MinSep:
  """Returns the tightest schema of the cohorts of a run with these flags."""
  clients = datasets.load_for(hparams).train_clients
  rounds = setting.scenario(hparams, len(clients)).simulation().rounds()
  followed = seen.Seen(numbered=True)
  for cohort in itertools.islice(rounds, hparams.num_rounds):
    followed.add(cohort.device_ids)
  return followed.schema
