"""The claim of a run that goes on, in which derived numbers are those of its folder.

Noise that was calibrated, and a strategy that was optimised, differ in their last digits from one
processor to another, where matrices are multiplied in another order.
"""

import dataclasses
import math
import pathlib
from typing import Any

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import claim_json
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.support.files import json_files

OPTIMISED = 1e-4
"""Relative difference of a strategy, and of noise for it, that is optimised anew elsewhere."""


def continued(claim: run_claim.Claim, folder: pathlib.Path) -> run_claim.Claim:
  """Returns a claim with strategy and noise as a run's folder has them, if the same but for digits.

  It is for a run that makes its noise by what is returned: the folder of no run, or of another one,
  leaves the claim as it is.
  """
  document = _read(folder)
  if document is None:
    return claim
  is_same = document['strategy'] == run_claim.described(claim.strategy)['strategy']
  noise, close = document['noise_multiplier'], json_files.ROUNDING if is_same else OPTIMISED
  if not (isinstance(noise, float) and math.isclose(noise, claim.noise_multiplier, rel_tol=close)):
    return claim
  strategy = claim.strategy
  if not is_same:
    try:
      strategy = files.load_strategy(folder / files.NAME)
    except (ValueError, OSError):
      return claim
    is_of_run = document['strategy'] == run_claim.described(strategy)['strategy']
    if not (is_of_run and _is_close(strategy, claim.strategy)):
      return claim
  return dataclasses.replace(claim, strategy=strategy, noise_multiplier=noise)


def check_report_goal(claim: run_claim.Claim, folder: pathlib.Path) -> None:
  """Raises ValueError for the run of a folder, but with another report goal, and says what does."""
  document, claim_document = _read(folder), claim.to_json()
  if document is None or any(document[n] != claim_document[n] for n in ('strategy', 'clip_norm')):
    return
  goal, stored = claim.report_goal, document['report_goal']
  if goal != stored and isinstance(goal, int) and isinstance(stored, int):
    raise ValueError(
      f'report_goal={goal}: the run in {folder} divides its sums by {stored} to its end; give'
      f' report_goal={stored}, and for means of {goal} updates multiply the learning rate of the'
      f' server by {stored}/{goal}'
    )


def num_rounds(claim: run_claim.Claim, folder: pathlib.Path) -> int | None:
  """Returns the rounds that a folder's run of the same strategy and noise declared, if any."""
  document, claim_document = _read(folder) or {}, claim.to_json()
  is_same = all(
    document.get(name) == claim_document[name] for name in ('strategy', 'noise_multiplier')
  )
  return _num_rounds(document) if is_same else None


def as_begun(claim: run_claim.Claim, folder: pathlib.Path) -> run_claim.Claim:
  """Returns a claim of as many rounds as a folder's run declared, if it has so many."""
  rounds, planned = _num_rounds(_read(folder) or {}), claim.answers.num_rounds
  if rounds is None or planned is None or rounds > planned:
    return claim
  return dataclasses.replace(claim, participation=claim.answers.within(rounds))


def _num_rounds(document: json_files.Object) -> int | None:
  participation = document.get('participation')
  rounds = participation.get('num_rounds') if isinstance(participation, dict) else None
  return rounds if type(rounds) is int else None


def _read(folder: pathlib.Path) -> json_files.Object | None:
  """Returns the claim of a folder; None where there is none, or one that its run will refuse."""
  try:
    return claim_json.read_file(folder / run_claim.NAME)[0]
  except (ValueError, OSError):
    return None


def _is_close(first: Any, second: Any) -> bool:
  """Returns whether parameters differ by less than optimising them anew may change."""
  if type(first) is not type(second):
    return False
  if isinstance(first, base.Strategy):
    return _is_close(first.parameters(), second.parameters())
  if isinstance(first, dict):
    names = first.keys() | second.keys()
    return all(name in first and name in second for name in names) and all(
      _is_close(first[name], second[name]) for name in names
    )
  if isinstance(first, (str, bool, int, type(None))):
    return bool(first == second)
  values, others = np.asarray(first, float), np.asarray(second, float)
  most = OPTIMISED * np.abs(values).max(initial=0.0)
  return values.shape == others.shape and bool((np.abs(values - others) <= most).all())
