"""Checks of public bundles: figures are computed again from n, b and k, which are asserted."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import private_checks, public_manifest, publishing, strategy_files
from fl_dpftrl.families import base
from fl_dpftrl.files import json_files
from fl_dpftrl.replaying import facts as facts_lib
from fl_dpftrl.replaying import publication, sensitivities
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.strategies import document, files
from fl_dpftrl.text import messages

CAVEAT = (
  'A public bundle asserts n, b and k of the log, whether the run is void, the clip norm, and the'
  ' assumptions. Its figures follow from these. Nothing in it shows that they are those of the'
  ' log: --private and --salt compare it with the bundle that has the log.'
)
COMPARED = (
  'n, b and k are those of the log in the private bundle. Compare the digest of that bundle too,'
  ' and keep the salt as secret as the log.'
)

_COMMITMENT = re.compile(rb'[0-9a-f]{64}\n')


def examine(
  found: checks_lib.Found,
  manifest: public_manifest.PublicManifest,
  compared: checks_lib.Check | None = None,
) -> tuple[checks_lib.Check, ...]:
  """Checks a bundle that `write_public_bundle` wrote.

  Args:
    found: the bundle.
    manifest: its manifest.
    compared: the check against the private bundle; None if it is not at hand.

  Raises:
    OSError: if it cannot be read.
  """
  checks: list[checks_lib.Check] = list(checks_lib.of_files(found, manifest))
  strategies: list[list[files.StrategyFile]] = []
  for place, run in enumerate(manifest.runs, 1):
    own = []
    for entry in run.strategies:
      name = f'strategy of run {place}' + (f' from round {entry.round}' if entry.round else '')
      checked, strategy = strategy_files.check(
        found.folder,
        name,
        entry.file,
        entry.sha256,
        made_by=manifest.made_by,
        listed=manifest.files,
      )
      checks.append(checked)
      own += [strategy] if strategy else []
    strategies.append(own)
    checks.append(_check_commitments(found.folder, place, run))
  if any(len(own) < len(run.strategies) for own, run in zip(strategies, manifest.runs)):
    why = 'not checked, as a strategy cannot be read'
    return (*checks, checks_lib.Check('statement', (why,)), checks_lib.unconfirmed())
  try:
    stored = json_files.read(found.folder / manifest_lib.STATEMENT)
    statement = _computed(manifest, strategies, stored)
  except (ValueError, OSError, OverflowError) as error:
    why = messages.one_line(error)
    return (*checks, checks_lib.Check('statement', (why,)), checks_lib.unconfirmed())
  own = checks_lib.plain(statement.to_json())
  differing = list(checks_lib.differences(stored, own, 'the parameters'))
  for run, of_run in zip(manifest.runs, strategies, strict=True):
    names = [entry.file for entry in run.strategies]
    differing += strategy_files.differences(names, of_run, _noise(run, of_run), run.schema)
  detail = 'figures computed again from n, b, k and the parameters, to the last digit'
  checks.append(checks_lib.Check('statement', tuple(differing), detail))
  checks += [compared] if compared else []
  fits = all(check.passed for check in checks)
  schemas = '; '.join(
    f'n = {run.num_rounds}, b = {run.min_sep}, k = {run.max_participations}'
    for run in manifest.runs
  )
  condition = f', if {schemas} are those of the log'
  if compared and compared.passed:
    condition = f', for {schemas} of the log in the private bundle'
  return (*checks, checks_lib.of_guarantee(statement, fits, condition))


def compare(
  folder: pathlib.Path,
  manifest: public_manifest.PublicManifest,
  source: private_checks.Examined,
  salt: bytes,
) -> checks_lib.Check:
  """Compares a public bundle with the bundle that it claims to be of."""
  name, detail = 'private bundle', 'it fits, and this is its public form, round by round'
  failed = [check.name for check in source.checks if not check.passed]
  if not source.fits:
    return checks_lib.Check(name, (f'it does not fit: {", ".join(failed)}',))
  found = []
  if manifest.guarantee != source.manifest.guarantee:
    found.append('its parameters of the guarantee are others')
  own_runs = publishing.public_runs(source)
  if len(own_runs) != len(manifest.runs):
    found.append(f'it has {len(own_runs)} runs, not {len(manifest.runs)}')
  for place, (own, run) in enumerate(zip(own_runs, manifest.runs), 1):
    stated, own_entry = checks_lib.plain(run.to_json()), checks_lib.plain(own.to_json())
    found += checks_lib.differences(stated, own_entry, f'the logs of run {place}')
    lines = _lines(folder / run.commitments)
    for t, line in enumerate(publishing.commitments(source, place, salt)):
      if t >= len(lines) or lines[t] != line:
        found.append(
          f'round {t} of run {place} is the first whose commitment has other rows or salt'
        )
        break
    else:
      if len(lines) > own.num_rounds:
        found.append(f'run {place} has commitments to more rounds than {own.num_rounds}')
  try:
    stored = json_files.read(folder / manifest_lib.STATEMENT)
    found += checks_lib.differences(stored, publishing.statement(source, salt), 'the logs')
  except (ValueError, OSError) as error:
    found.append(messages.one_line(error))
  return checks_lib.Check(name, checks_lib.shortened(found), detail)


def _lines(path: pathlib.Path) -> list[str]:
  try:
    return path.read_text(encoding='ascii').splitlines()
  except (OSError, ValueError):
    return []


def _check_commitments(
  folder: pathlib.Path, place: int, run: public_manifest.PublicRun
) -> checks_lib.Check:
  """Checks that there is one commitment a round; what it commits to cannot be seen."""
  number, found = 0, ()
  try:
    with open(folder / run.commitments, 'rb') as stream:
      for number, line in enumerate(iter(lambda: stream.read(65), b''), 1):
        if not _COMMITMENT.fullmatch(line):
          found = (f'line {number} is no commitment',)
          break
  except OSError as error:
    found = (messages.one_line(error),)
  if not found and number != run.num_rounds:
    found = (f'there are {number}, not one for each of {run.num_rounds} rounds',)
  return checks_lib.Check(
    f'commitments of run {place}', found, f'{number}, one a round; only the salt opens them'
  )


def _computed(
  manifest: public_manifest.PublicManifest,
  strategies: Sequence[Sequence[files.StrategyFile]],
  stored: Any,
) -> statement_lib.Statement:
  """Returns the statement that follows from the parameters, and from what it asserts.

  Raises:
    ValueError: if a parameter is out of range, or the stored statement has another form.
  """
  if not isinstance(stored, dict):
    raise ValueError(f'{manifest_lib.STATEMENT} must be a JSON object')
  asked, runs = manifest.guarantee, manifest.runs
  adjacency_lib.check(asked.adjacency, asked.group_size)
  if not asked.deltas:
    raise ValueError('deltas must hold at least one delta')
  noises = [_noise(run, own) for run, own in zip(runs, strategies, strict=True)]
  spend = sensitivities.Spending.of(noises, asked.adjacency, asked.deltas)
  worst = sensitivities.worst_case(noises, [run.schema for run in runs])
  announced = [run.declared for run in runs if run.declared is not None]
  declared = None
  if announced:
    if len(announced) < len(runs):
      raise ValueError('declared must be given for each run, or for none')
    declared = statement_lib.DeclaredGuarantee(
      min_sep=min(schema.min_sep for schema in announced),
      max_participations=max(schema.participations for schema in announced),
      loss=spend.loss(sensitivities.worst_case(noises, announced), asked.group_size),
      holds=all(run.holds for run in runs),
    )
  void, commitment = stored.get('void_reason'), stored.get('commitment')
  if void not in (None, publication.VOID):
    raise ValueError(f'void_reason must be none, or {publication.VOID!r}')
  value = commitment.get('hmac_sha256') if isinstance(commitment, dict) else None
  if not isinstance(value, str) or not re.fullmatch('[0-9a-f]{64}', value):
    raise ValueError('commitment must have hmac_sha256 of 64 hexadecimal digits')
  entries = stored.get('runs') if len(runs) > 1 else [stored]
  if not (isinstance(entries, list) and len(entries) == len(runs)):
    raise ValueError('runs must be those of the manifest')
  facts = tuple(
    _facts(run, noise, asked.report_goal, entry)
    for run, noise, entry in zip(runs, noises, entries, strict=True)
  )
  return statement_lib.Statement(
    runs=facts,
    num_rounds=sum(run.num_rounds for run in runs),
    min_sep=min(run.min_sep for run in runs),
    max_participations=max(run.max_participations for run in runs),
    worst_case=spend.loss(worst, asked.group_size),
    declared=declared,
    adjacency=asked.adjacency,
    group_size=asked.group_size,
    void_reason=void,
    warnings=publication.warnings(facts),
    commitment=statement_lib.Commitment(hmac_sha256=value, salt=None),
    confidential=False,
  )


def _noise(
  run: public_manifest.PublicRun, strategies: Sequence[files.StrategyFile]
) -> runs_lib.Noise:
  return run.noise([file.strategy for file in strategies])


def _facts(
  run: public_manifest.PublicRun, noise: runs_lib.Noise, report_goal: int | None, entry: Any
) -> facts_lib.RunFacts:
  """Returns the facts of a run: its parameters, and what its entry of the statement asserts."""

  def told(strategy: base.Strategy) -> facts_lib.Strategy:
    return facts_lib.Strategy(strategy.family, document.strategy_digest(strategy))

  asserted = facts_lib.asserted(entry, run.num_rounds)
  if 'schema_in_log' in asserted and run.declared is None:
    raise ValueError('schema_in_log is of a declared schema, and none is declared')
  return facts_lib.RunFacts(
    num_rounds=run.num_rounds,
    min_sep=run.min_sep,
    max_participations=run.max_participations,
    noise_multiplier=run.noise_multiplier,
    strategy=told(noise.strategy),
    report_goal=report_goal,
    changes=run.changes,
    restarts=run.restarts,
    later_strategies=tuple((t, told(strategy)) for t, strategy in noise.later_strategies),
    declared_schema=run.declared,
    **asserted,
  )
