"""Plans runs and evaluates each plan on a simulation that it has not seen.

python -m benchmarks.plan.run --only=plan-3M-exact
"""

import argparse
import pathlib
import sys
import time

from benchmarks import pages, process, sides
from benchmarks.plan import cases, judge, results
from fl_dpftrl.planning import forecast as forecast_lib

CORES = 2
MAX_COPIES = (16, 1000)


def command(case: cases.Case) -> list[str]:
  """Returns the `fl-dpftrl plan` command of a case, for this interpreter."""
  return [
    sys.executable,
    '-m',
    'fl_dpftrl.commands.main',
    'plan',
    *case.words,
    f'--noise_multiplier={judge.NOISE_MULTIPLIER}',
    f'--delta={judge.DELTA}',
    f'--num_simulations={judge.NUM_SIMULATIONS}',
    '--json',
  ]


class Lines:
  """Progress lines on stderr, at most one every few seconds."""

  def __init__(self, seconds: float = 5.0):
    self._seconds, self._next = seconds, 0.0

  def __call__(self, text: str) -> None:
    if time.monotonic() >= self._next:
      print(text, file=sys.stderr)
      self._next = time.monotonic() + self._seconds


def measure(case: cases.Case, num_seeds: int, lines: Lines) -> results.Row:
  """Simulates with each seed, plans, evaluates, and times the command."""
  outcomes = []
  for seed in range(num_seeds):
    tell = lambda seed=seed: lines(f'{case.name}: simulation {seed + 1} of {num_seeds}')
    outcomes.append(forecast_lib.run(case.simulate(seed), case.num_rounds, tell))
  judges = judge.Judge(judge.NAMES, lambda text: lines(f'{case.name}: {text}'))
  verdicts = [
    verdict
    for index in range(num_seeds)
    for verdict in judges.verdicts(outcomes, index, MAX_COPIES)
  ]
  lines(f'{case.name}: the command')
  done = process.run(command(case), timeout=case.timeout)
  side = sides.Side()
  side = side.failed(done.failure) if done.failure else side.finished(done)
  return results.Row(case, outcomes, verdicts, side)


def document(about: dict, rows: list[results.Row]) -> str:
  """Returns the Markdown page of a measurement."""
  return '\n'.join(
    [
      '# Planning a run: fl-dpftrl plan against hindsight',
      '',
      f'For each seed, a plan is made from {judge.NUM_SIMULATIONS} simulations'
      ' with other seeds, and the simulation with this seed is the log of the'
      ' run. The n, b and k of the log give the best strategy in hindsight, among'
      ' the same strategies and with no more copies of the model.',
      'Losses are max loss under the log; least–most over the seeds. ε is at the'
      f' noise multiplier {judge.NOISE_MULTIPLIER:g} and δ = {judge.DELTA:g}:'
      ' predicted with the planned n, b and k, and computed from the log.',
      '',
      f'{about["date"]}, {about["processor"]},'
      f' {about["cores_used"] or "any"} of {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      results.table(rows),
      '',
      *(row.forecast() for row in rows),
      '',
    ]
  )


def parse(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.plan.run', description=__doc__.split('\n')[0]
  )
  add = parser.add_argument
  add('--only', default='', help='comma-separated parts of names')
  add('--seeds', type=int, default=20, help='number of simulations (default: 20)')
  add('--output', default='benchmarks/results', help='folder of the results')
  args = parser.parse_args(arguments)
  args.words = [w for w in args.only.split(',') if w not in ('', 'all')]
  try:
    args.cases = cases.select(args.words)
    if args.seeds <= judge.NUM_SIMULATIONS:
      raise ValueError(f'--seeds must be above {judge.NUM_SIMULATIONS}, got {args.seeds}')
  except ValueError as e:
    parser.error(str(e))
  return args


def file_name(words: list[str]) -> str:
  """Returns the name of the results without suffix: plan, plan-3M-exact."""
  more = [word.removeprefix(cases.PREFIX).strip('-') for word in words]
  return '-'.join(filter(None, [cases.PREFIX, *more]))


def main(arguments: list[str] | None = None) -> int:
  args = parse(arguments)
  about = {
    **pages.machine(CORES if process.pin(CORES) else None),
    'versions': pages.versions(sys.executable, 'numpy', 'scipy'),
  }
  rows, lines = [], Lines()
  for case in args.cases:
    rows.append(measure(case, args.seeds, lines))
    print(results.table(rows[-1:]), file=sys.stderr)
  text = document(about, rows)
  print(text)
  pages.write(
    pathlib.Path(args.output),
    file_name(args.words),
    text,
    {**about, 'rows': [row.as_json() for row in rows]},
  )
  return int(not all(row.passes and not row.command.failures for row in rows))


if __name__ == '__main__':
  sys.exit(main())
