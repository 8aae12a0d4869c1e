"""Trains clients in rounds, in turn with loops in TensorFlow alone.

python -m benchmarks.training.run --only=training-lstm
"""

import argparse
import dataclasses
import json
import pathlib
import sys

from benchmarks import pages, process
from benchmarks.training import cases, results

CORES = 2
TIMEOUT = 900.0


def measure(case: cases.Case, repeats: int) -> results.Row:
  """Runs all sides in turn, `repeats` times; a failed side is not repeated."""
  found = {side: results.Measured() for side in case.sides}
  for repeat in range(repeats):
    for side, before in found.items():
      if before.failures:
        continue
      found[side] = after(
        before,
        process.run(
          [sys.executable, '-m', 'benchmarks.training.side', case.name, side],
          timeout=TIMEOUT,
          threads=CORES,
        ),
      )
      said = (*found[side].failures, found[side].passes)[0]
      print(f'{case.name} {repeat + 1} {side}: {said}', file=sys.stderr)
  return results.Row(case, found)


def after(measured: results.Measured, done: process.Finished) -> results.Measured:
  """Returns the side with the passes of one more process."""
  if done.failure:
    return dataclasses.replace(measured, failures=(*measured.failures, done.failure))
  passes = (*measured.passes, *json.loads(done.output))
  return dataclasses.replace(measured, passes=passes)


def document(about: dict, rows: list[results.Row]) -> str:
  """Returns the Markdown page of a measurement."""
  return '\n'.join(
    [
      '# Training: federated rounds and central loops',
      '',
      f"Each pass trains on {cases.NUM_CLIENTS} clients' {cases.NUM_SENTENCES}"
      f' sentences of {cases.LENGTH} words, in float32. "Central" is a compiled'
      ' step of SGD on each batch in TensorFlow alone. "Keras" is the same with'
      ' Keras\'s own layers. "Federated" is a round of TensorFlow Federated with'
      ' bounded updates and noise. The last columns compare with the faster of'
      ' the two loops, by the clock and by processor time.',
      '',
      f'{about["date"]}, {about["processor"]},'
      f' {about["cores_used"] or "any"} of {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      results.table(rows),
      '',
    ]
  )


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.training.run', description=__doc__.split('\n')[0]
  )
  add = parser.add_argument
  add('--only', default='', help='comma-separated parts of names')
  add('--repeats', type=int, default=3, help='runs of each side (default: 3)')
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
    **pages.machine(CORES if process.pin(CORES) else None),
    'versions': pages.versions(sys.executable, 'tensorflow', 'tensorflow-federated', 'numpy'),
  }
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  more = [word.removeprefix(cases.PREFIX).strip('-') for word in words]
  rows = []
  for case in selected:
    rows.append(measure(case, args.repeats))
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
