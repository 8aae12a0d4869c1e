"""The publishable version of a statement, and its commitment to a secret log.

Only what is named here is published, and facts of runs that `facts.RunFacts` marks as published.
So a new field of a statement stays confidential until somebody decides otherwise. Some published
fields are functions of the log that no guarantee covers: the largest number of participations,
the least separation, whether the declared schema or the stated shuffling holds, whether the run
is void, and the number of rounds if the log does not state it.

The digest of a log is not published: whoever knows all of its rows but a few could try values
for those until the digest is right. A commitment is published instead, HMAC-SHA-256 of the
digests of the log's files under a fresh random salt. The commitment reveals nothing without the
salt. With the salt, it proves that a log is the one committed to.
"""

import dataclasses
import hashlib
import hmac
import secrets
import shlex
from collections.abc import Sequence

from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.replaying import facts as facts_lib
from fl_dpftrl.replaying import statement as statement_lib

SALT_BYTES = 16

VOID = 'its log says so, or is of another run'
ASSUMED_ROUNDS = (
  'A log does not say how many rounds consumed noise; its last round plus one'
  ' was taken. Burnt rounds after it would be missing'
)
# Stands for the value of --columns, whose names are those of another system.
_COLUMNS = 'COLUMNS'


def committed(
  statement: statement_lib.Statement, salt: bytes | None = None
) -> statement_lib.Statement:
  """Returns a confidential statement with a commitment to its log.

  Args:
    statement: a result of `replay`.
    salt: 16 bytes, never used before; None for fresh random bytes of the operating system.

  Raises:
    ValueError: if the salt has another length.
  """
  salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
  if len(salt) != SALT_BYTES:
    raise ValueError(f'salt must have {SALT_BYTES} bytes, got {len(salt)}')
  lines = ''.join(f'{file.sha256}\n' for file in statement.log)
  digest = hmac.new(salt, lines.encode(), hashlib.sha256).hexdigest()
  return dataclasses.replace(
    statement, commitment=statement_lib.Commitment(hmac_sha256=digest, salt=salt.hex())
  )


def publishable(statement: statement_lib.Statement) -> statement_lib.Statement:
  """Returns the statement reduced to what may be published.

  Figures that rest on secret draws are left out, since they would reveal min_sep and
  max_participations.
  """
  void, commitment, drawn = statement.void_reason, statement.commitment, None
  if statement.drawn is not None and not statement.drawn.is_amplified:
    drawn = dataclasses.replace(statement.drawn, reason=None)
  runs = tuple(map(_publishable_run, statement.runs))
  return statement_lib.Statement(
    runs=runs,
    worst_case=statement.worst_case,
    declared=statement.declared,
    drawn=drawn,
    void_reason=void and VOID,
    warnings=warnings(runs),
    commitment=commitment and commitment._replace(salt=None),
    confidential=False,
  )


def warnings(runs: Sequence[facts_lib.RunFacts]) -> tuple[str, ...]:
  """Returns the warnings of a publishable statement."""
  return (ASSUMED_ROUNDS,) if any(run.num_rounds_assumed for run in runs) else ()


def _publishable_run(run: facts_lib.RunFacts) -> facts_lib.RunFacts:
  return facts_lib.RunFacts(
    noise=run.noise,
    min_sep=run.min_sep,
    max_participations=run.max_participations,
    layout=_publishable_layout(run.layout),
    declared_schema=run.declared_schema,
    **run.published(),
  )


def _publishable_layout(layout: layout_lib.Layout) -> layout_lib.Layout:
  """Returns the layout without the names of columns."""
  first = layout.first_round
  if layout._replace(first_round=0) == layout_lib.PLAIN:
    return layout_lib.Layout(first_round=first)
  return layout_lib.Layout(round=_COLUMNS, device_id=_COLUMNS, first_round=first)


def command(statement: statement_lib.Statement) -> str:
  """Returns the command that reproduces the figures of a published statement.

  Args:
    statement: a result of `publishable`; LOG and STRATEGY, or RUNS, stand for files, and COLUMNS
      for the names of a log's columns.
  """
  words = ['fl-dpftrl', 'replay']
  first = statement.runs[0]
  if statement.several:
    words.append('--runs=RUNS')
  else:
    words += [
      '--log=LOG',
      '--strategy=STRATEGY',
      f'--noise_multiplier={first.noise.noise_multiplier}',
    ]
    if ASSUMED_ROUNDS not in statement.warnings:
      words.append(f'--num_rounds={first.num_rounds}')
    if first.layout.round == _COLUMNS:
      words.append(f'--columns={_COLUMNS}')
    if first.layout.first_round:
      words.append(f'--first_round={first.layout.first_round}')
    if statement.declared is not None and not first.schema_in_log:
      words.append(f'--declared_num_rounds={statement.declared.num_rounds}')
      words.append(f'--declared_min_sep={statement.declared.min_sep}')
      words.append(f'--declared_max_participations={statement.declared.max_participations}')
    if statement.drawn is not None:
      scheme = statement.drawn.scheme
      words += [
        f'--sampling={statement.drawn.name}',
        f'--num_examples={scheme.num_examples}',
        f'--batch_size={scheme.batch_size}',
        f'--num_parts={scheme.num_parts}',
      ]
  words += [f'--delta={delta}' for delta in statement.deltas]
  words.append(f'--adjacency={statement.adjacency}')
  words.append(f'--group_size={statement.group_size}')
  if not statement.several and first.report_goal is not None:
    words.append(f'--report_goal={first.report_goal}')
  return shlex.join(words)
