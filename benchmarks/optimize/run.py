"""Optimises each case with both sides in turn and writes the table.

python -m benchmarks.optimize.run --peer_python=PYTHON --only=blt
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

from benchmarks import pages, process
from benchmarks.optimize import cases, ours, results

_HERE = pathlib.Path(__file__).parent


@dataclasses.dataclass
class Runner:
  """Runner of one case in a temporary folder.

  Attributes:
    case: optimisation problem.
    peer_python: interpreter of the peer's environment.
    folder: temporary folder.
  """

  case: cases.Case
  peer_python: str
  folder: pathlib.Path

  @property
  def _files(self) -> list[str]:
    return [str(self.folder / 'case.json'), str(self.folder / 'found.npz')]

  def run_ours(self, side: results.Side) -> results.Side:
    done = process.run(ours.command(self.case), timeout=self.case.timeout)
    if done.failure:
      return side.failed(done.failure)
    try:
      figures = ours.losses(done.output)
    except ValueError as e:
      return side.failed(str(e))
    objective = figures[f'{self.case.objective}_loss']
    return side.finished(done, figures=figures, own_loss=objective)

  def run_peer(self, side: results.Side) -> results.Side:
    case_file, found_file = map(pathlib.Path, self._files)
    case_file.write_text(json.dumps(dataclasses.asdict(self.case)))
    found_file.unlink(missing_ok=True)
    peer = [self.peer_python, str(_HERE / 'peer.py')]
    done = process.run([*peer, 'optimize', *self._files], timeout=self.case.timeout)
    if done.failure:
      return side.failed(done.failure)
    if side.figures is not None:
      return side.finished(done)
    # Neither is timed: our evaluation, and the peer's report of its own loss.
    judged = process.run(
      [sys.executable, '-m', 'benchmarks.optimize.evaluate', *self._files],
      timeout=self.case.timeout,
    )
    if judged.failure:
      return side.failed(judged.failure)
    own = process.run([*peer, 'report', *self._files], timeout=self.case.timeout)
    return side.finished(
      done,
      figures=json.loads(judged.output),
      own_loss=None if own.failure else json.loads(own.output),
    )


def measure(case: cases.Case, peer_python: str, repeats: int) -> results.Row:
  """Runs both sides in turn, `repeats` times; a failed side is not repeated."""
  sides = {'ours': results.Side(), 'peer': results.Side()}
  with tempfile.TemporaryDirectory() as folder:
    runner = Runner(case, peer_python, pathlib.Path(folder))
    run = {'ours': runner.run_ours, 'peer': runner.run_peer}
    for repeat in range(min(repeats, case.repeats)):
      for name, side in sides.items():
        if side.failures:
          continue
        sides[name] = run[name](side)
        note = sides[name].note()
        print(f'{case.name} {repeat + 1} {name}: {note}', file=sys.stderr)
  return results.Row(case, **sides)


def facts(peer_python: str, pinned: bool) -> dict:
  """Returns the machine and versions of a measurement."""

  try:
    peer = pages.versions(peer_python, 'jax-privacy', 'jax', 'numpy', 'scipy')
  except ValueError as e:
    raise ValueError(f'--peer_python={peer_python}: {e}') from None
  return {
    **pages.machine(1 if pinned else None),
    'ours': pages.versions(sys.executable, 'numpy', 'scipy', 'jax'),
    'peer': peer,
  }


def document(about: dict, rows: list[results.Row]) -> str:
  """Returns the Markdown page of a measurement."""

  own = [
    f'- {results.setting(r.case)}: {r.peer.own_loss:.4f}'
    for r in rows
    if r.peer.own_loss is not None
  ]
  return '\n'.join(
    [
      '# Finding a strategy: fl-dpftrl and jax-privacy',
      '',
      'Each run is a cold process: imports, compilation and the search. Seconds'
      ' are the median (least–most) of all runs.',
      'Settings are mechanism, size, (n, b, k), objective. Losses of both sides'
      ' are evaluated by the same code.',
      '',
      f'{about["date"]}, {about["processor"]},'
      f' {about["cores_used"] or "any"} of {about["cores"]} cores, one thread.'
      f' Ours: {pages.said(about["ours"])}. Peer: {pages.said(about["peer"])}.',
      '',
      results.table(rows),
      '',
      'The loss of the objective as the peer itself evaluates it:',
      '',
      *own,
      '',
    ]
  )


def parse(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.optimize.run', description=__doc__.split('\n')[0]
  )
  add = parser.add_argument
  add('--peer_python', required=True, help='Python of an environment with jax-privacy')
  add('--only', default='', help='comma-separated groups or parts of names')
  add('--repeats', type=int, default=3, help='runs of each side (default: 3)')
  add('--output', default='benchmarks/results', help='folder of the results')
  args = parser.parse_args(arguments)
  try:
    args.cases = cases.select([w for w in args.only.split(',') if w])
    if args.repeats < 1:
      raise ValueError(f'--repeats must be at least 1, got {args.repeats}')
  except ValueError as e:
    parser.error(str(e))
  return args


def main(arguments: list[str] | None = None) -> int:
  args = parse(arguments)
  try:
    about = facts(args.peer_python, process.pin(1))
  except (OSError, ValueError) as e:
    print(f'bench: {e}', file=sys.stderr)
    return 2
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  name = '-'.join(['optimize', *filter(None, args.only.split(','))])
  rows = []
  for case in args.cases:
    rows.append(measure(case, args.peer_python, args.repeats))
    as_json = {**about, 'rows': [row.as_json() for row in rows]}
    pages.write(folder, name, document(about, rows), as_json)
  print(results.table(rows))
  return 0


if __name__ == '__main__':
  sys.exit(main())
