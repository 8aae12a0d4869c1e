"""Checks of public bundles: figures are computed again from n, b and k, which are asserted."""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

from fl_dpftrl.accounting import run_noise
from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.bundles import entries as entries_lib
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import private_checks, publishing, strategy_files
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import facts as facts_lib
from fl_dpftrl.replaying import publication
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.strategies import files
from fl_dpftrl.text import messages, rounding

CAVEAT = (
  'A public bundle asserts n, b and k of the log, strategy and noise multiplier of the run, whether'
  ' it is void, the clip norm, and the assumptions. Its figures follow from these. Nothing in it'
  ' shows that they are those of the run: --private and --salt compare it with the bundle that has'
  ' the log.'
)
COMPARED = (
  'n, b and k are those of the log in the private bundle. Compare the digest of that bundle too,'
  ' and keep the salt as secret as the log.'
)

_COMMITMENT = re.compile(rb'[0-9a-f]{64}\n')


def examine(
  bundle: checks_lib.Opened, digest: str | None = None, compared: checks_lib.Check | None = None
) -> tuple[checks_lib.Check, ...]:
  """Checks a bundle that `write_public_bundle` wrote.

  Args:
    digest: SHA-256 of its manifest from elsewhere, in hexadecimal; None if there is none.
    compared: the check against the private bundle; None if it is not at hand.
  """
  folder, manifest = bundle.folder, bundle.manifest
  checks = checks_lib.of_files(bundle, digest)
  strategies: list[files.StrategyFile] = []
  for place, run in enumerate(manifest.runs, 1):
    checked, strategy = strategy_files.check(
      bundle, f'strategy of run {place}', manifest_lib.strategy_name(place)
    )
    checks.append(checked)
    strategies += [strategy] if strategy else []
    path = folder / manifest_lib.commitments_name(place)
    checks.append(_check_commitments(path, place, run.num_rounds))
  if len(strategies) < len(manifest.runs):
    return (*checks, *checks_lib.without_statement('not checked, as a strategy cannot be read'))
  try:
    stored = json_files.read(folder / manifest_lib.STATEMENT)
    statement = _computed(manifest, strategies, stored)
  except (ValueError, OSError, OverflowError) as error:
    return (*checks, *checks_lib.without_statement(error))
  beside: dict[str, str] = {}
  for place, (file, facts) in enumerate(zip(strategies, statement.runs), 1):
    beside |= strategy_files.differences(manifest_lib.strategy_name(place), file, facts)
  own = checks_lib.plain(statement.to_json())
  differing = checks_lib.differences(stored, own, 'the parameters', beside)
  detail = 'figures computed again from n, b, k and the parameters, to the last digit'
  checks.append(checks_lib.Check('statement', differing, detail))
  checks += [compared] if compared else []
  fits = all(check.passed for check in checks)
  shown = '; '.join(
    f'n = {run.num_rounds}, b = {run.min_sep}, k = {run.max_participations}, noise multiplier'
    f' {rounding.exact(run.noise.noise_multiplier)}'
    for run in statement.runs
  )
  condition = f', if {shown} are those of the run'
  if compared and compared.passed:
    condition = f', for {shown} of the log in the private bundle'
  return (*checks, checks_lib.of_guarantee(statement, fits, condition))


def compare(
  bundle: checks_lib.Opened, source: private_checks.Examined, salt: bytes
) -> checks_lib.Check:
  """Compares a public bundle with the bundle that it claims to be of."""
  name, detail = 'private bundle', 'it fits, and this is its public form, round by round'
  failed = [check.name for check in source.checks if not check.passed]
  if not source.fits:
    return checks_lib.Check(name, (f'it does not fit: {", ".join(failed)}',))
  folder, manifest, wrong = bundle.folder, bundle.manifest, []
  if manifest.guarantee != source.bundle.manifest.guarantee:
    wrong.append('its arguments of the guarantee are others')
  if len(source.runs) != len(manifest.runs):
    wrong.append(f'it has {len(source.runs)} runs, not {len(manifest.runs)}')
  for place, (own, run) in enumerate(zip(source.runs, manifest.runs), 1):
    published = entries_lib.to_json(manifest_lib.Run.published(own))
    wrong += checks_lib.differences(entries_lib.to_json(run), published, f'the logs of run {place}')
    lines = _lines(folder / manifest_lib.commitments_name(place))
    for t, line in enumerate(publishing.commitments(source, place, salt)):
      if t >= len(lines) or lines[t] != line:
        wrong.append(
          f'round {t} of run {place} is the first whose commitment has other rows or salt'
        )
        break
    else:
      if len(lines) > t + 1:
        wrong.append(f'run {place} has commitments to more rounds than {t + 1}')
  try:
    stored = json_files.read(folder / manifest_lib.STATEMENT)
    wrong += checks_lib.differences(stored, publishing.statement(source, salt), 'the logs')
  except (ValueError, OSError) as error:
    wrong.append(messages.one_line(error))
  return checks_lib.Check(name, checks_lib.shortened(wrong), detail)


def _lines(path: pathlib.Path) -> list[str]:
  try:
    return path.read_text(encoding='ascii').splitlines()
  except (OSError, ValueError):
    return []


def _check_commitments(path: pathlib.Path, place: int, num_rounds: int | None) -> checks_lib.Check:
  """Checks that there is one commitment a round; what it commits to cannot be seen."""
  number, wrong = 0, ()
  try:
    with open(path, 'rb') as stream:
      for number, line in enumerate(iter(lambda: stream.read(65), b''), 1):
        if not _COMMITMENT.fullmatch(line):
          wrong = (f'line {number} is no commitment',)
          break
  except OSError as error:
    wrong = (messages.one_line(error),)
  if not wrong and number != num_rounds:
    wrong = (f'there are {number}, not one for each of {num_rounds} rounds',)
  return checks_lib.Check(
    f'commitments of run {place}', wrong, f'{number}, one a round; only the salt opens them'
  )


def _computed(
  manifest: manifest_lib.Manifest, strategies: Sequence[files.StrategyFile], stored: Any
) -> statement_lib.Statement:
  """Returns the statement that follows from arguments, strategies and what it asserts itself."""
  asked, runs = manifest.guarantee, manifest.runs
  if not isinstance(stored, dict):
    raise ValueError(f'{manifest_lib.STATEMENT} must be a JSON object')
  entries = stored.get('runs') if len(runs) > 1 else [stored]
  if not isinstance(entries, list) or [type(e) for e in entries] != [dict] * len(runs):
    raise ValueError('runs must be those of the manifest')
  facts = []
  for run, file, entry in zip(runs, strategies, entries):
    facts.append(_facts(run, run.noise(file.strategy, entry), asked.report_goal, entry))
  void, commitment = stored.get('void_reason'), stored.get('commitment')
  if void not in (None, publication.VOID):
    raise ValueError(f'void_reason must be none, or {publication.VOID!r}')
  value = commitment.get('hmac_sha256') if isinstance(commitment, dict) else None
  if not isinstance(value, str) or not re.fullmatch('[0-9a-f]{64}', value):
    raise ValueError('commitment must have hmac_sha256 of 64 hexadecimal digits')
  return statement_lib.of_facts(
    tuple(facts),
    deltas=asked.deltas,
    adjacency=asked.adjacency,
    group_size=asked.group_size,
    void_reason=void,
    warnings=publication.warnings(facts),
    commitment=statement_lib.Commitment(hmac_sha256=value, salt=None),
    confidential=False,
  )


def _facts(
  run: manifest_lib.Run,
  noise: run_noise.RunNoise,
  report_goal: int | None,
  entry: json_files.Object,
) -> facts_lib.RunFacts:
  """Returns the facts of a run: its arguments, and what its entry of the statement asserts."""
  asserted = facts_lib.asserted(entry)
  if 'schema_in_log' in asserted and run.declared is None:
    raise ValueError('schema_in_log is of a declared schema, and none is declared')
  names = ('min_sep', 'max_participations')
  shown = {name: entries_lib.typed(name, entry.get(name), int) for name in names}
  schema = schemas.MinSep(num_rounds=noise.num_rounds, **shown)
  return facts_lib.RunFacts(
    noise=noise,
    min_sep=schema.min_sep,
    max_participations=schema.participations,
    report_goal=report_goal,
    declared_schema=run.declared,
    **asserted,
  )
