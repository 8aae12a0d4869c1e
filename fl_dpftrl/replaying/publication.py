"""The publishable version of a statement, and its commitment to a secret log.

Only listed fields are published, so a new field of a statement stays
confidential until somebody decides otherwise. Some published fields are
functions of the log that no guarantee covers: the largest number of
participations, the least separation, whether the declared schema or the stated
shuffling holds, whether the run is void, and the number of rounds if the log
does not state it.

The digest of a log is not published: whoever knows all of its rows but a few
could try values for those until the digest is right. A commitment is published
instead, HMAC-SHA-256 of the digests of the log's files under a fresh random
salt. The commitment reveals nothing without the salt. With the salt, it proves
that a log is the one committed to.
"""

import hashlib
import hmac
import secrets
import shlex
from collections.abc import Mapping
from typing import Any

SALT_BYTES = 16

_OF_RUN = (
  'num_rounds',
  'min_sep',
  'max_participations',
  'noise_multiplier',
  'strategy',
  'changes',
  'restarts',
  'report_goal',
  'clip_norm',
  'clip_norm_changes',
)
_OF_PART = (
  'sensitivity',
  'sensitivity_kind',
  'effective_noise_multiplier',
  'rho',
  'epsilon',
  'curve',
  'min_sep',
  'max_participations',
  'holds',
)
_OF_DRAWS = (
  'sampling',
  'num_examples',
  'batch_size',
  'num_parts',
  'separation',
  'adjacency',
  'assumption',
)
_OF_ALL = ('delta', 'adjacency', 'group_size')
_VOID = 'its log says so, or is of another run'
_ASSUMED_ROUNDS = (
  'A log does not say how many rounds consumed noise; its last round plus one'
  ' was taken. Burnt rounds after it would be missing'
)
# Sentences about figures that are left out of the published statement.
_CONFIDENTIAL_SENTENCES = ('observed: ', 'amplified: ')


def committed(statement: Mapping[str, Any], salt: bytes | None = None) -> dict[str, Any]:
  """Returns a confidential statement with a commitment to its log.

  Args:
    statement: a result of `replay`.
    salt: 16 bytes, never used before; None for fresh random bytes of the
      operating system.

  Raises:
    ValueError: if the salt has another length.
  """
  if not statement['log']:  # Rows that were never in a file have no digest.
    return dict(statement)
  salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
  if len(salt) != SALT_BYTES:
    raise ValueError(f'salt must have {SALT_BYTES} bytes, got {len(salt)}')
  lines = ''.join(f'{file["sha256"]}\n' for file in statement['log'])
  commitment = hmac.new(salt, lines.encode(), hashlib.sha256).hexdigest()
  return {**statement, 'commitment': {'salt': salt.hex(), 'hmac_sha256': commitment}}


def publishable(statement: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the statement reduced to what may be published.

  Figures that rest on secret draws are left out, since they would reveal
  min_sep and max_participations.
  """
  runs = statement.get('runs')
  void = statement['void_reason']
  result = {
    **_only(statement, _OF_RUN + _OF_ALL),
    'worst_case': _only(statement['worst_case'], _OF_PART),
  }
  if 'declared' in statement:
    result['declared'] = _only(statement['declared'], _OF_PART)
  if 'shuffled' in statement:
    shuffled = _only(statement['shuffled'], _OF_PART + _OF_DRAWS)
    result['shuffled'] = {**shuffled, 'reason': None}
  if runs is not None:
    result['runs'] = [_only(facts, _OF_RUN) for facts in runs]
  if 'commitment' in statement:
    result['commitment'] = _only(statement['commitment'], ('hmac_sha256',))
  assumed = any(facts.get('num_rounds_assumed') for facts in runs or [statement])
  return {
    **result,
    'assumptions': [
      sentence.replace(void, _VOID) if void else sentence
      for sentence in statement['assumptions']
      if not sentence.startswith(_CONFIDENTIAL_SENTENCES)
    ],
    'void_reason': void and _VOID,
    'warnings': [_ASSUMED_ROUNDS] if assumed else [],
    'confidential': False,
  }


def command(statement: Mapping[str, Any]) -> str:
  """Returns the command that reproduces the figures of a published statement.

  Args:
    statement: a result of `publishable`; LOG and STRATEGY, or RUNS, stand for
      files.
  """
  words = ['fl-dpftrl', 'replay']
  if 'runs' in statement:
    words.append('--runs=RUNS')
  else:
    words += [
      '--log=LOG',
      '--strategy=STRATEGY',
      f'--noise_multiplier={statement["noise_multiplier"]}',
      f'--num_rounds={statement["num_rounds"]}',
    ]
    words += [f'--noise_multiplier_from={t}:{m}' for t, m in statement.get('changes', ())]
    words += [f'--restart={t}' for t in statement.get('restarts', ())]
    for name in ('min_sep', 'max_participations'):
      if 'declared' in statement:
        words.append(f'--declared_{name}={statement["declared"][name]}')
    for name in ('sampling', 'num_examples', 'batch_size', 'num_parts'):
      if 'shuffled' in statement:
        words.append(f'--{name}={statement["shuffled"][name]}')
  curve = statement['worst_case'].get('curve', [statement])
  words += [f'--delta={point["delta"]}' for point in curve]
  words.append(f'--adjacency={statement["adjacency"]}')
  words.append(f'--group_size={statement["group_size"]}')
  if 'report_goal' in statement:
    words.append(f'--report_goal={statement["report_goal"]}')
  return shlex.join(words)


def _only(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
  return {name: values[name] for name in names if name in values}
