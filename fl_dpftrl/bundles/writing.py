"""Writing of bundles."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import strategy_files
from fl_dpftrl.files import durable, json_files, paths
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import ledger, refusals
from fl_dpftrl.replaying import embedded, replay
from fl_dpftrl.replaying import facts as facts_lib
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.strategies import document as strategy_document
from fl_dpftrl.strategies import files

_WITH_PATHS = ('warnings', 'assumptions', 'void_reason')
_ORDER = 'round, device_id'


class Bundle(NamedTuple):
  """A bundle that was written.

  Attributes:
    digest: SHA-256 of its manifest, in hexadecimal, which fixes every file of the bundle.
    statement: the statement in it.
  """

  digest: str
  statement: statement_lib.Statement


def write_bundle(
  folder: str | os.PathLike[str],
  runs: runs_lib.Run | Sequence[runs_lib.Run],
  *,
  deltas: float | Sequence[float],
  adjacency: str = 'zero_out',
  group_size: int = 1,
  report_goal: int | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> Bundle:
  """Writes a folder with which `verify` computes a guarantee again.

  It has the logs byte for byte, the strategies, the arguments, releases of packages, the
  chained digest of each round and the statement. It is as confidential as the logs, and only
  its owner can read it. The folder appears whole or not at all.

  Args:
    folder: the folder, which must not exist yet; its parent must.
    runs: one run, or several of one population, as `open_run` gives them.
    deltas, adjacency, group_size, report_goal, progress: see `replay`.

  Raises:
    ValueError: for a folder that exists, an argument outside its range, a log that is not in
      files of its own, and a run with sampled batches.
    LogError: if a log cannot be believed.
    OSError: if the folder cannot be written.
  """
  folder = paths.local(folder)
  check_folder(folder)
  runs = [runs] if isinstance(runs, runs_lib.Run) else list(runs)
  for run in runs:
    check_run(run)
  deltas = [deltas] if isinstance(deltas, (int, float)) else deltas
  guarantee = manifest_lib.Guarantee(
    deltas=tuple(map(float, deltas)),
    adjacency=adjacency,
    group_size=group_size,
    report_goal=report_goal,
  )
  with durable.building(folder, private=True) as temporary:
    logs = [_store_log(temporary, place, run) for place, run in enumerate(runs, 1)]
    arguments = list(map(manifest_lib.Run.of, runs))
    with _logs_named(logs, runs):
      opened = [
        entry.open(paths, run.noise.strategy)
        for entry, paths, run in zip(arguments, logs, runs, strict=True)
      ]
      statement = statement_of(opened, guarantee, progress)
      for place, (run, facts) in enumerate(zip(opened, statement.runs, strict=True), 1):
        _store_rounds(temporary / manifest_lib.rounds_name(place), run, progress)
        _store_strategy(temporary / manifest_lib.strategy_name(place), facts)
    _write(
      temporary / manifest_lib.STATEMENT,
      (json.dumps(document(statement, temporary), indent=2, allow_nan=False) + '\n').encode(),
    )
    digest = manifest_lib.write(temporary, manifest_lib.FORMAT, guarantee, arguments, private=True)
    check_folder(folder)
  return Bundle(digest, statement)


def check_folder(folder: pathlib.Path) -> None:
  """Raises ValueError unless the folder can be made."""
  if os.path.lexists(folder):
    raise ValueError(f'bundle {str(folder)!r} exists already; name another folder, or remove it')
  if not folder.resolve().parent.is_dir():
    raise ValueError(f'bundle {str(folder)!r}: the folder that it is to be in does not exist')


def statement_of(
  runs: Sequence[runs_lib.Run],
  guarantee: manifest_lib.Guarantee,
  progress: Callable[[str], None] = lambda text: None,
) -> statement_lib.Statement:
  """Returns the statement of the runs of a bundle; errors as for `replay`."""
  return replay.replay(runs, **vars(guarantee), progress=progress)


def document(statement: statement_lib.Statement, folder: pathlib.Path) -> json_files.Object:
  """Returns a statement as JSON gives it back, without the folder that the logs were read in."""
  result = json.loads(json.dumps(statement.to_json(), allow_nan=False))
  prefix = f'{folder}{os.sep}'
  for name in _WITH_PATHS:
    value = result[name]
    if isinstance(value, list):
      result[name] = [sentence.replace(prefix, '') for sentence in value]
    elif value is not None:
      result[name] = value.replace(prefix, '')
  return result


def check_run(run: runs_lib.Run) -> None:
  """Raises ValueError or LogError unless a bundle can hold the run."""
  if run.sampling is not None:
    raise ValueError('sampling: a bundle of sampled batches is not supported')
  for shard in run.log.shards:
    folders = layout_lib.partitions(os.path.abspath(shard.path))
    if shard.path.endswith(ledger.SUFFIX):
      raise ValueError(f'{shard.path}: close the log first, which makes a Parquet file of it')
    if {run.log.layout.round, run.log.layout.device_id} & folders.keys():
      raise ValueError(
        f'{shard.path}: a column of it may be in the names of its folders, which a bundle does'
        ' not keep; write the log as one file'
      )


def _store_log(folder: pathlib.Path, place: int, run: runs_lib.Run) -> list[pathlib.Path]:
  """Copies the files of a run's log; returns the copies."""
  paths = []
  for number, (shard, stated) in enumerate(zip(run.log.shards, run.log.files(), strict=True), 1):
    path = folder / manifest_lib.log_name(place, number, shard.path)
    with durable.replacing(path, private=True) as temporary:
      shutil.copyfile(shard.path, temporary)
    if manifest_lib.File.of(path).sha256 != stated.sha256:
      raise refusals.LogError(f'{shard.path}: was changed while it was copied; try again')
    paths.append(path)
  return paths


@contextlib.contextmanager
def _logs_named(
  logs: Sequence[Sequence[pathlib.Path]], runs: Sequence[runs_lib.Run]
) -> Iterator[None]:
  """Makes an error about the copy of a log name the log."""
  try:
    yield
  except refusals.LogError as error:
    text = str(error)
    for paths, run in zip(logs, runs, strict=True):
      for path, shard in zip(paths, run.log.shards, strict=True):
        text = text.replace(str(path), shard.path)
    raise refusals.LogError(text) from error


def _store_rounds(path: pathlib.Path, run: runs_lib.Run, progress: Callable[[str], None]) -> None:
  """Writes the chained digest of each round, one a line."""
  with durable.replacing(path, private=True) as temporary:
    with open(temporary, 'w', encoding='ascii', newline='\n') as stream:
      stream.writelines(f'{digest}\n' for digest in chained(run, progress))


def _store_strategy(path: pathlib.Path, facts: facts_lib.RunFacts) -> None:
  """Writes a run's strategy with its figures under the schema that the log shows."""
  strategy_files.save(path, facts)
  for written in path.parent.glob(f'{path.stem}.*'):  # Its figures are of a confidential log.
    _write(written, written.read_bytes())
  if strategy_document.strategy_digest(files.load_strategy(path)) != facts.strategy.sha256:
    raise ValueError(f'strategy of family {facts.strategy.family!r} is not read as written')


def _write(path: pathlib.Path, content: bytes) -> None:
  durable.write_durably(path, content, private=True)


def chained(
  run: runs_lib.Run, progress: Callable[[str], None] = lambda text: None
) -> Iterator[str]:
  """Yields H_t of each round t of a run, in hexadecimal; rounds without devices too.

  The order of rows in the log does not matter.

  Args:
    progress: called often with a line about the progress.
  """
  before, t, kept = ledger.START, 0, list[pa.Array]()
  with embedded.ordered(embedded.Rows([run], progress), _ORDER) as batches:
    for batch in batches:
      table = pa.Table.from_batches([batch])
      rounds = table.column('round').to_numpy()
      bounds = [0, *(np.flatnonzero(np.diff(rounds)) + 1).tolist(), len(rounds)]
      for first, end in zip(bounds, bounds[1:]):
        if first == end:
          continue
        while t < rounds[first]:
          before, t, kept = _next(before, t, kept)
          yield before.hex()
        kept.append(table.column('device_id').slice(first, end - first).combine_chunks())
  while t < run.log.num_rounds:
    before, t, kept = _next(before, t, kept)
    yield before.hex()


def _next(before: bytes, t: int, kept: list[pa.Array]) -> tuple[bytes, int, list[pa.Array]]:
  """Returns H_t, the next round, and its device ids, of which there are none yet."""
  device_ids = pa.concat_arrays(kept) if kept else pa.array([], pa.string())
  return ledger.chained(before, t, device_ids), t + 1, []
