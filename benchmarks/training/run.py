"""Trains clients in rounds, in turn with loops in TensorFlow alone and with pfl-research.

python -m benchmarks.training.run --only=training-lstm --peer_python=.venv-pfl/bin/python
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

from benchmarks import pages, process
from benchmarks.training import cases, results

_SIDE = 'benchmarks.training.side'
TIMEOUT = 900.0


def measure(case: cases.Case, repeats: int, peer_python: str) -> results.Row:
  """Runs all sides in turn, `repeats` times; a failed side is not repeated."""
  found = {side: results.Measured() for side in case.sides}
  with tempfile.TemporaryDirectory() as folder:
    description = pathlib.Path(folder) / 'case.json'
    description.write_text(json.dumps({**dataclasses.asdict(case), 'length': cases.LENGTH}))
    for repeat in range(repeats):
      for side, before in found.items():
        if before.failures:
          continue
        command = _command(case, side, peer_python, str(description))
        done = process.run(command, timeout=TIMEOUT, threads=side.threads)
        found[side] = after(before, done)
        said = (*found[side].failures, found[side].passes)[0]
        print(f'{case.name} {repeat + 1} {side.name} {side.batch}: {said}', file=sys.stderr)
  return results.Row(case, found)


def _command(case: cases.Case, side: cases.Side, peer_python: str, description: str) -> list[str]:
  if side.what != cases.PEER:
    return [sys.executable, '-m', _SIDE, case.name, side.what, str(side.batch)]
  several = ['-m', 'torch.distributed.run', f'--nproc_per_node={side.processes}']
  script = str(pathlib.Path(__file__).with_name('peer.py'))
  return [
    peer_python,
    *(several if side.processes > 1 else []),
    script,
    description,
    str(side.batch),
    str(case.passes),
  ]


def after(measured: results.Measured, done: process.Finished) -> results.Measured:
  """Returns the side with the passes of one more process."""
  if done.failure:
    return dataclasses.replace(measured, failures=(*measured.failures, done.failure))
  passes = (*measured.passes, *json.loads(done.output.splitlines()[-1]))
  return dataclasses.replace(measured, passes=passes)


def document(about: dict, rows: list[results.Row]) -> str:
  """Returns the Markdown page of a measurement."""
  return '\n'.join(
    [
      '# Training: federated rounds and central loops',
      '',
      'Each pass trains on the sentences of all clients of a round, of'
      f' {cases.LENGTH} words each, in float32: {_sizes(rows)}. "Central" is a compiled'
      ' step of SGD on each batch with the loss function of TensorFlow. "Keras" is the same with'
      ' Keras\'s own layers. "Output layer" is the last layer of the log-bilinear model'
      ' with its losses and gradients, and nothing else. "Federated" is a round of TensorFlow'
      ' Federated in process, with bounded updates and noise, several clients at a time.'
      ' "pfl-research" is such a round on'
      ' PyTorch, by one thread, by two, and by two processes. Other columns compare with'
      ' the faster of the loops and with the best of the peer at the same batch, by the'
      ' clock and by processor time; below 1 over the peer is less time than its.',
      '',
      f'{about["date"]}, {about["processor"]},'
      f' {about["cores_used"] or "any"} of {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      results.table(rows),
      '',
    ]
  )


def _sizes(rows: list[results.Row]) -> str:
  return ', '.join(
    f'{row.case.clients} clients × {row.case.sentences} ({row.case.size})' for row in rows
  )


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.training.run', description=__doc__.split('\n')[0]
  )
  add = parser.add_argument
  add('--only', default='', help='comma-separated parts of names')
  add('--repeats', type=int, default=3, help='runs of each side (default: 3)')
  add('--peer_python', required=True, help='a Python that has pfl-research and PyTorch')
  add('--output', default='benchmarks/results', help='folder of the results')
  args = parser.parse_args(arguments)
  words = [word for word in args.only.split(',') if word]
  try:
    selected = cases.select(words)
    if args.repeats < 1:
      raise ValueError(f'--repeats must be at least 1, got {args.repeats}')
  except ValueError as e:
    parser.error(str(e))
  about = {
    **pages.machine(cases.CORES if process.pin(cases.CORES) else None),
    'versions': {
      **pages.versions(sys.executable, 'tensorflow', 'tensorflow-federated', 'numpy'),
      **pages.versions(args.peer_python, 'pfl', 'torch'),
    },
  }
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  more = [word.removeprefix(cases.PREFIX).strip('-') for word in words]
  rows = []
  for case in selected:
    rows.append(measure(case, args.repeats, args.peer_python))
    pages.write(
      folder,
      '-'.join(filter(None, [cases.PREFIX, *more])),
      document(about, rows),
      {**about, 'rows': [r.as_json() for r in rows]},
    )
  print(results.table(rows))
  return int(any(m.failures for row in rows for m in row.found.values()))


if __name__ == '__main__':
  sys.exit(main())
