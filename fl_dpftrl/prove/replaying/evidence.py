"""Evidence: a folder from which others compute the statement of runs again.

It holds the logs byte for byte, and for each run its strategy, claim and table of units;
`statement.json`, with the arguments of the replay under `asked`; `certificate.json`, with the
figures that the checker proves; and `SHA256SUMS`, as `sha256sum` writes it, of all others.
It is as confidential as the logs; `Statement.publishable` is what may be published. Nothing in it
shows that all of it was not forged together: keep the digest of SHA256SUMS elsewhere.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import (
  claim_json,
  layouts,
  ledger_format,
  participation_log,
  refusals,
  table_columns,
  unit_tables,
)
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.prove.replaying import (
  certificates,
  opened_runs,
  population_runs,
  replay_arguments,
  replays,
  statements,
  verdicts,
  verification,
)
from fl_dpftrl.support.files import durable, json_files, paths
from fl_dpftrl.support.text import messages, roundings

SUMS, STATEMENT, UNITS = 'SHA256SUMS', 'statement.json', unit_tables.NAME
_UNSTATED = 'the log states none: it is that of whoever replayed'

_LINE = re.compile(r'([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._-]{0,199})')
_LISTED = 20  # sentences
Progress = Callable[[str], None]


def write_evidence(
  folder: str | os.PathLike[str],
  runs: opened_runs.Given | population_runs.PopulationRuns | Sequence[opened_runs.Given],
  *,
  delta: float | Sequence[float],
  adjacency: str = 'zero_out',
  group_size: int = 1,
  disjoint: bool = False,
  local_ids: bool = False,
  model: str | os.PathLike[str] | None = None,
  claim: str | None = None,
  progress: Progress = lambda text: None,
) -> str:
  """Writes an evidence folder, whole or not at all; only its owner can read it.

  Args:
    folder: the folder, which must not exist yet; its parent must.
    runs, delta, adjacency, group_size, disjoint, local_ids, progress: see `replay`.
    model: file of the model that the last run released, whose digest is to be in the evidence.
    claim: ε@δ that the guarantee is to hold, such as '4@1e-5', which `verify` judges.

  Returns:
    The digest of its SHA256SUMS, to keep elsewhere.

  Raises:
    ValueError: for a folder that exists, a log that is still written or has columns in the names of
      its folders, and as `replay`.
  """
  folder, population = paths.local(folder), population_runs.given(runs)
  separate: Any = runs
  runs = opened_runs.together(separate, local_ids=local_ids) if population is None else []
  check_folder(folder)
  for run in runs:
    check_run(run)
  asked: json_files.Object = dict(
    adjacency=adjacency, group_size=group_size, disjoint=disjoint, local_ids=local_ids
  )
  asked['deltas'] = [delta] if isinstance(delta, (int, float)) else list(delta)
  asked['model_sha256'] = None if model is None else _digest(paths.local(model))
  asked['runs'] = [replay_arguments.for_run(run) for run in runs]
  asked['population'] = population is not None
  if claim is not None:
    verdicts.ClaimedEpsilon.parse(claim)
    asked[replay_arguments.CLAIM] = claim
  with durable.building(folder) as temporary:
    opened, originals = [], dict[str, Any]()
    for run, entry, prefix in zip(runs, asked['runs'], _prefixes(len(runs))):
      originals |= _store_log(temporary, prefix, run)
      _write(temporary / f'{prefix}{run_claim.NAME}', run.claim.to_json())
      if run.units is not None:
        run.units.save(temporary / f'{prefix}{UNITS}', run.log.layout.first_round)
      opened.append(dataclasses.replace(run, log=_opened(temporary, prefix, entry)))
    if population is not None:
      population_runs.store(population, temporary, UNITS)
    try:
      statement = _replayed(_population(temporary) if population else opened, asked, progress)
    except refusals.LogError as error:  # It names the copy.
      for copy, original in originals.items():
        error = refusals.LogError(str(error).replace(copy, original))
      raise error from None
    for facts, prefix in zip(statement.runs, _prefixes(len(runs))):
      path = temporary / f'{prefix}{files.NAME}'
      files.save_strategy(path, facts.claim.strategy, schema=facts.schema.schema)
    for path in temporary.iterdir():
      path.chmod(0o600)  # A strategy's figures are of a confidential log.
    certified = certificates.certified(statement)
    if certified.document is not None:
      _write(temporary / certificates.NAME, certified.document)
    _write(temporary / STATEMENT, _document(statement, asked, temporary))
    sums = b''.join(f'{_digest(p)}  {p.name}\n'.encode() for p in sorted(temporary.iterdir()))
    durable.write_durably(temporary / SUMS, sums, private=True)
    check_folder(folder)
  return hashlib.sha256(sums).hexdigest()


def verify(
  folder: str | os.PathLike[str],
  *,
  model: str | os.PathLike[str] | None = None,
  progress: Progress = lambda text: None,
) -> verification.Verification:
  """Checks an evidence folder: all of it is computed again from logs, strategies and claims.

  Args:
    folder: the folder that `write_evidence` wrote.
    model: file of a model, to compare with the digest in the evidence; None for no such check.
    progress: see `replay`.

  Raises:
    ValueError: for a folder without SHA256SUMS, or with links or folders in it.
  """
  folder = paths.local(folder).resolve()
  kinds = {e.name: e.is_file(follow_symlinks=False) for e in os.scandir(folder)}
  if SUMS not in kinds:
    raise ValueError(f'{messages.quoted(str(folder))} holds no {SUMS}: it is no evidence')
  for name in (name for name, is_regular in kinds.items() if not is_regular):
    raise ValueError(f'{messages.quoted(str(folder))}: {messages.quoted(name)} is no regular file')
  digest = hashlib.sha256((folder / SUMS).read_bytes()).hexdigest()
  checks = [_check('files', lambda: _sums(folder, set(kinds)), f'{len(kinds) - 1} digests')]
  stored: Any = None
  try:
    stored = json_files.read(folder / STATEMENT)
    asked = replay_arguments.checked(stored.get('asked') if isinstance(stored, dict) else None)
  except (ValueError, OSError) as error:
    failed = verification.Check('statement', (messages.one_line(error),))
    return verification.Verification(
      digest=digest, checks=(*checks, failed, _guarantee(None, False))
    )
  runs, prefixes = [], _prefixes(len(asked['runs']))
  for entry, prefix in zip(asked['runs'], prefixes):
    opens = functools.partial(lambda *of: runs.append(_run(folder, *of)), prefix, entry)
    check = _check(f'{prefix}claim', opens, 'it is that of the log, and of its strategy')
    is_unstated = not check.found and runs[-1].stated is None
    checks.append(check._replace(detail=_UNSTATED) if is_unstated else check)
  statement: statements.Statement | None = None
  certified = certificates.Certified(None, ())

  def compare() -> Iterator[str]:
    nonlocal statement, certified
    if len(runs) < len(prefixes):
      yield 'not checked, as a claim, a log or a strategy does not fit'
      return
    population = _population(folder) if asked['population'] else None
    statement = _replayed(population or runs, asked, progress)
    certified = certificates.certified(statement)
    expected = json.dumps(_document(statement, asked, folder))
    yield from json_files.differences('', stored, json.loads(expected))
    names = {f'{p}{UNITS}' for p, run in zip(prefixes, runs) if run.units}
    names |= {SUMS, STATEMENT, certificates.NAME}
    names |= population_runs.file_names(population, UNITS) if population else set()
    for facts, prefix in zip(statement.runs, prefixes):
      path = folder / f'{prefix}{files.NAME}'
      yield from _strategy_differences(path, facts.schema.schema, names)
      names |= {f'{prefix}{run_claim.NAME}', *(file['name'] for file in facts.log or ())}
    yield from (f'{messages.quoted(name)} is of no run' for name in sorted(kinds.keys() - names))

  checks.append(_check('statement', compare, 'every figure computed again, each within 1e-9'))
  path = folder / certificates.NAME
  fits = lambda: certificates.differences(path, certified.document)
  if statement is None:
    fits = proof = lambda: iter(['not checked, as no figure was computed'])
  else:
    proof = functools.partial(_proof, path, certified.document is not None)
  checks.append(_check('certificate', fits, 'that of the figures that were computed again'))
  detail = f'by another program; not proved: {"; ".join(certified.not_proved) or "none"}'
  checks.append(_check('proof', proof, detail))
  if model is not None:
    differs = functools.partial(_model, paths.local(model), asked['model_sha256'])
    checks.append(_check('model', differs, 'the same digest'))
  fits_all, claim = not any(check.found for check in checks), asked.get(replay_arguments.CLAIM)
  checks.append(_guarantee(statement, fits_all, claim))
  return verification.Verification(digest=digest, checks=tuple(checks), statement=statement)


def check_folder(folder: pathlib.Path) -> None:
  """Raises ValueError unless the folder can be made."""
  if os.path.lexists(folder):
    raise ValueError(f'evidence {str(folder)!r} exists already; name another folder, or remove it')
  if not folder.resolve().parent.is_dir():
    raise ValueError(f'evidence {str(folder)!r}: the folder that it is to be in does not exist')


def check_run(run: opened_runs.RecordedRun) -> None:
  """Raises ValueError unless evidence can hold the run's log."""
  if run.from_counts:
    raise ValueError('evidence holds the log of a run, and counts were given in its place')
  for shard in run.log.shards:
    if shard.path.endswith(ledger_format.SUFFIX):
      raise ValueError(
        f'{shard.path}: the run is open, or was killed: open it with its own program and close it,'
        ' which makes a Parquet file of the log'
      )
    folders = table_columns.partitions(os.path.abspath(shard.path))
    if set(run.log.layout.names.values()) & folders.keys():
      raise ValueError(
        f'{shard.path}: a column of it may be in the names of its folders, which evidence does not'
        ' keep; write the log as one file'
      )


def _population(folder: pathlib.Path) -> population_runs.PopulationRuns:
  """Opens the population of evidence."""
  tables = sorted(folder.glob(f'run-*-{UNITS}'), key=lambda path: int(path.name.split('-')[1]))
  return population_runs.opened(folder, tables, is_copy=True)


def _prefixes(num_runs: int) -> list[str]:
  return [''] if num_runs == 1 else [f'run-{place}-' for place in range(1, num_runs + 1)]


def _store_log(folder: pathlib.Path, prefix: str, run: opened_runs.RecordedRun) -> dict[str, str]:
  """Copies the files of a run's log; returns their paths by those of the copies."""
  originals = {}
  for number, (shard, stated) in enumerate(zip(run.log.shards, run.log.files(), strict=True), 1):
    path = folder / f'{prefix}log-{number}{pathlib.PurePath(shard.path).suffix}'
    with durable.replacing(path, private=True) as temporary:
      shutil.copyfile(shard.path, temporary)
    if _digest(path) != stated['sha256']:
      raise refusals.LogError(f'{shard.path}: was changed while it was copied; try again')
    originals[str(path)] = shard.path
  return originals


def _opened(folder: pathlib.Path, prefix: str, entry: json_files.Object) -> participation_log.Log:
  """Opens the log of a run in a folder."""
  name = re.compile(rf'{re.escape(prefix)}log-([1-9][0-9]{{0,8}})(\..+)?')
  numbered = {int(m[1]): path for path in folder.iterdir() if (m := name.fullmatch(path.name))}
  layout = layouts.parse(entry['columns'], entry['first_round'], entry['missing'])
  logs = [numbered[number] for number in sorted(numbered)]
  return participation_log.read_log(logs, num_rounds=entry['num_rounds'], layout=layout)


def _run(folder: pathlib.Path, prefix: str, entry: json_files.Object) -> opened_runs.RecordedRun:
  """Opens a run; ValueError unless log, strategy and claim fit together."""
  log = _opened(folder, prefix, entry)
  strategy = files.load_strategy(folder / f'{prefix}{files.NAME}')
  document = json_files.read(folder / f'{prefix}{run_claim.NAME}')
  claim = run_claim.Claim.from_json(document, strategy)
  units = folder / f'{prefix}{UNITS}'
  table = unit_tables.opened(units, log.layout.first_round) if units.exists() else None
  run = opened_runs.RecordedRun(
    log=log, claim=claim, stated=claim_json.read(log.metadata), units=table
  )
  for sentence in replays.against_log(run):
    raise ValueError(f'{prefix}{run_claim.NAME}: {sentence}')
  return run


def _replayed(
  runs: Sequence[opened_runs.RecordedRun] | population_runs.PopulationRuns,
  asked: json_files.Object,
  progress: Progress,
) -> statements.Statement:
  options = {'delta': asked['deltas'], **{name: asked[name] for name in replay_arguments.OPTIONS}}
  return replays.replay(runs, **options, progress=progress)


def _document(
  statement: statements.Statement, asked: json_files.Object, folder: pathlib.Path
) -> json_files.Object:
  """Returns a statement and its arguments, without the folder that the logs were read in."""
  result, prefix = statement.to_json(), f'{folder}{os.sep}'
  for name in ('warnings', 'assumptions'):
    result[name] = [sentence.replace(prefix, '') for sentence in result[name]]
  not_proved = certificates.certified(statement).not_proved
  return {**result, 'not_proved': list(not_proved), 'asked': asked}


def _write(path: pathlib.Path, document: json_files.Object) -> None:
  content = json.dumps(document, indent=2, allow_nan=False) + '\n'
  durable.write_durably(path, content.encode(), private=True)


def _digest(path: pathlib.Path) -> str:
  """Returns SHA-256 of a file; a link is not followed."""
  with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), 'rb') as stream:
    return hashlib.file_digest(stream, 'sha256').hexdigest()


def _check(name: str, compare: Callable[[], Any], detail: str) -> verification.Check:
  """Returns a check of what a function yields, or raises."""
  try:
    problems = list(compare() or ())
  except (ValueError, OSError, OverflowError, RecursionError) as error:
    problems = [messages.one_line(error)]
  more = [f'and {len(problems) - _LISTED} more'] if len(problems) > _LISTED else []
  return verification.Check(name, (*problems[:_LISTED], *more), detail)


def _sums(folder: pathlib.Path, names: set[str]) -> Iterator[str]:
  """Yields what does not fit its digest, or has none."""
  text = json_files.read_bytes(folder / SUMS).decode('utf-8', 'replace')
  listed: dict[str, str] = {}
  for number, line in enumerate(text.removesuffix('\n').split('\n'), 1):
    match = _LINE.fullmatch(line)
    if not match or match[2] == SUMS or match[2] in listed:
      yield f'{SUMS}, line {number}: {messages.quoted(line)} is no digest and name of another file'
    else:
      listed[match[2]] = match[1]
  for name in sorted(names - listed.keys() - {SUMS}):
    yield f'{messages.quoted(name)} is not in {SUMS}'
  for name, stated in listed.items():
    if name not in names:
      yield f'{name} is missing'
    elif (digest := _digest(folder / name)) != stated:
      yield f'{name} has the digest {digest}, not {stated}'


def _strategy_differences(
  path: pathlib.Path, schema: schemas.Schema, names: set[str]
) -> Iterator[str]:
  """Yields what a strategy's file says beside what follows from its run; adds its files' names."""
  file, stored = files.load(path), json_files.read(path)
  names.add(path.name)
  arrays = [p for p in path.parent.glob(f'{path.stem}.*.npz') if p.name in path.read_text('utf-8')]
  for array in arrays:
    names.add(array.name)
    if array.name != files.arrays_name(path, array.read_bytes()):
      yield f'{path.name} has other arrays than those of its strategy'
  described = files.describe(file.strategy, schema, objective='max', version=file.version)
  document = files.document(described, arrays[0].name if arrays else None)
  yield from json_files.differences(path.name, stored, json.loads(json.dumps(document)))


def _proof(path: pathlib.Path, is_due: bool) -> Iterator[str]:
  """Yields what the checker does not prove of a certificate, where one must be there."""
  if is_due and not path.exists():
    yield 'not checked, as there is no certificate'
  elif path.exists():
    holds, lines = certificates.proof_of(json_files.read_bytes(path).decode())
    if not holds:
      yield from [x.strip() for x in lines if 'not proved' in x] or ['the checker failed']


def _model(path: pathlib.Path, stated: str | None) -> Iterator[str]:
  if (digest := _digest(path)) != stated:
    yield f'{path.name} has the digest {digest}, not {messages.quoted(stated)}'


def _guarantee(
  statement: statements.Statement | None, fits: bool, claim: str | None = None
) -> verification.Check:
  """Checks that a statement guarantees something, or what was claimed, in evidence that fits."""
  wrong = [] if fits else ['not confirmed, as the evidence does not fit']
  if statement is None:
    return verification.Check('guarantee', tuple(wrong))
  planned, void = statement.planned, (statement.void_reason, statement.worst_case.void_reason)
  wrong += [messages.one_line(f'it is void: {why}') for why in void if why]
  if planned and not planned.holds:
    wrong.append(planned.broken)
  judged = verdicts.verdict(statement, verdicts.ClaimedEpsilon.parse(claim)) if claim else None
  wrong += [str(judged)] if judged and not judged.held else []
  shown = ', '.join(
    f'{part.name.replace("_", " ")} ε = {roundings.up(part.guarantee.epsilon())}'
    for part in statement.parts
  )
  whom = '' if statement.group_size == 1 else f' for {statement.group_size} devices together'
  adjacency = statement.adjacency.replace('_', '-')
  at = f'at δ = {roundings.exact(statement.delta)}, {adjacency} adjacency{whom}'
  claimed = f'; {judged}' if judged else ''
  return verification.Check('guarantee', tuple(wrong), f'{shown} {at}{claimed}')
