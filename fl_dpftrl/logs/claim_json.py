"""Claims as JSON: in the metadata of logs, and in files; claims compute with them."""

import hashlib
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from fl_dpftrl.logs import keys, refusals
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

FIELDS = {
  *('strategy', 'noise_multiplier', 'clip_norm', 'report_goal', 'participation', 'arithmetic'),
  *('void_reason', 'private_metrics', 'not_private_metrics', 'trusted_operations', 'population'),
  'canaries',
}
"""Attributes of a claim."""

RUN = 'run'
"""Key of the run's identity, in a file."""

_SAID = 2  # differences
# Where noise is made, by the numbers that releases are made of.
_PLACES = {'covered': 'by an engine', 'lattice': "in TFF's state"}


def read(metadata: Mapping[str, str]) -> json_files.Object | None:
  """Returns the claim that metadata state, unchecked; None without one, LogError for a bad one."""
  text = metadata.get(keys.CLAIM_KEY)
  if text is None:
    return None
  try:
    document = json_files.parse(text.encode())
  except (ValueError, RecursionError) as error:
    raise refusals.LogError(f'the claim in the metadata of the log is no JSON: {error}') from error
  if not isinstance(document, dict) or document.keys() != FIELDS:
    raise refusals.LogError(
      f'the claim in the metadata of the log must have {", ".join(sorted(FIELDS))}'
    )
  if metadata.get(keys.CLAIM_DIGEST_KEY) != hashlib.sha256(text.encode()).hexdigest():
    raise refusals.LogError(
      f'the claim in the metadata of the log is not of {keys.CLAIM_DIGEST_KEY}'
    )
  return document


def read_file(path: pathlib.Path) -> tuple[json_files.Object, str | None]:
  """Returns the claim of a file, unchecked, and the run that it is of, if it says it."""
  document = json_files.read(path)
  run = document.pop(RUN, None) if isinstance(document, dict) else None
  if not isinstance(document, dict) or document.keys() != FIELDS:
    raise ValueError(f'{path}: a claim must have {", ".join(sorted(FIELDS))}')
  return document, run


def check_file(path: pathlib.Path, claim: json_files.Object, run: str | None) -> None:
  """Raises ValueError for the file of another claim, or run, than the log of a run states."""
  document, file_run = read_file(path)
  if None not in (run, file_run) and run != file_run:
    raise ValueError(f'{path}: is of another run than the log: put its own claim, or log, back')
  if other := list(differences(claim, document)):
    raise ValueError(
      f'{path}: the run has the {"; ".join(other[:_SAID])}: put its claim back, or remove this file'
    )


def differences(claim: json_files.Object, other: json_files.Object) -> Iterator[str]:
  """Yields a sentence for each attribute of a claim that differs, in type or in the last digit."""
  for name, value in other.items():
    if json.dumps(claim[name], sort_keys=True) == json.dumps(value, sort_keys=True):
      continue
    stored = claim[name]
    if name == 'participation' and stored and value and stored.keys() == value.keys():
      parts = {f'{name}.{key}': (stored[key], value[key]) for key in value}
    else:
      parts = {name: (stored, value)}
    for part, (first, second) in parts.items():
      if json.dumps(first, sort_keys=True) != json.dumps(second, sort_keys=True):
        yield f'{part} {_shown(first)}, not {_shown(second)}'


def another_run(
  path: str | os.PathLike[str], stored: Mapping[str, str], claim: Mapping[str, str]
) -> refusals.LogError:
  """Returns the error for a ledger with one claim, as metadata, that is opened with another."""
  stored_claim, claim_document = read(stored), read(claim)
  if stored_claim is None or claim_document is None:
    reasons = [f'it states {"no" if stored_claim is None else "a"} claim']
  else:
    reasons = list(differences(stored_claim, claim_document))
    kinds = [document['arithmetic'].get('kind', '') for document in (stored_claim, claim_document)]
    if len(reasons) == 1 and set(_PLACES) == set(kinds):
      begun, now = (_PLACES[kind] for kind in kinds)
      return refusals.LogError(
        f'{path}: the run was begun with noise {begun}, and the aggregator now has it {now}: give'
        " memory='engine' or 'state' as before"
      )
  advice = 'open it with the same arguments as before'
  if any(reason.startswith('strategy ') for reason in reasons):
    advice = (
      "give the strategy of before, strategy.json in the run's folder: optimised anew it differs"
    )
  if any(reason.startswith('population ') for reason in reasons):
    advice = 'give the population that it began with'
  return refusals.LogError(f'{path}: is of another run: {"; ".join(reasons[:_SAID])}; {advice}')


def _shown(value: Any) -> str:
  text = value if isinstance(value, str) else json.dumps(value)
  return 'none' if value is None else messages.one_line(text, 80)
