"""Planning a run: fl-dpftrl plan against hindsight.

For each seed, a plan is made from 3 simulations with other seeds, and the simulation with this seed
is the log of the run. The n, b and k of the log give the best strategy in hindsight, among the same
strategies and with no more copies of the model. Losses are max loss under the log; least–most over
the seeds. ε is at the noise multiplier 7.379 and δ = 1e-10: predicted with the planned n, b and k,
and computed from the log.
"""

import collections
import json
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks import runner
from benchmarks.runner import Side, call

CORES = 2
NOISE_MULTIPLIER, DELTA, NUM_SIMULATIONS = 7.379, 1e-10, 3
MAX_COPIES = (16, 1000)
LIMIT = 0.02  # Accepted relative excess of the plan's loss over that of hindsight.
_3M = ['--population=3000000', '--report_goal=6500', '--num_rounds=2000', '--timer_hours=72']
CASES = {
  'plan-3M': _3M,
  # Rounds wait for all chosen devices, so b differs from seed to seed.
  'plan-3M-exact': [*_3M, '--clients_per_round=6500', '--dropout=0'],
}
TABLE = (
  'run={name}|copies=at most {max_copies:,}|recommended={recommended}|best in hindsight={best}|'
  'loss above it={excess}|within 2 %={within} of {seeds}|as planned for={covered} of {seeds}|'
  'ε predicted={predicted}|ε of the logs={epsilon}'
)


def spread(values: Sequence[float], form: str) -> str:
  """Formats the minimum and the maximum, or one value if they read alike."""
  return '–'.join(dict.fromkeys(form.format(f(values)) for f in (min, max)))


def labels(names: Iterable[str]) -> str:
  """Formats strategies, and how often each is named if they differ."""
  counts = collections.Counter(names).most_common()
  return ', '.join(f'{name} ({n})' if len(counts) > 1 else name for name, n in counts)


def summary(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
  """Returns the cells of the verdicts on one run with one limit of copies."""
  column = lambda name: [verdict[name] for verdict in verdicts]
  return {
    'recommended': labels(column('recommended')),
    'best': labels(column('best')),
    'excess': spread(column('excess'), '{:.2%}'),
    'within': sum(excess <= LIMIT for excess in column('excess')),
    'covered': sum(column('is_covered')),
    'predicted': spread(column('predicted_epsilon'), '{:.2f}'),
    'epsilon': spread(column('epsilon'), '{:.2f}'),
    'seeds': len(verdicts),
    'verdicts': verdicts,
  }


def forecast(name: str, outcomes: list[dict[str, Any]], command: runner.Runs) -> str:
  """Returns what the simulations say, in one line."""
  of = lambda key, form='{}': spread([outcome[key] for outcome in outcomes], form)
  return (
    f'- {name} (`{" ".join(CASES[name])}`): {len(outcomes)} simulations, b {of("min_sep")}, k'
    f' {of("max_participations")}, days {of("days", "{:.1f}")}.'
    f' The whole command: {command} s, {command:MiB} MiB.'
  )


def main(options: runner.Options) -> int:
  """Judges a plan for each of twenty seeds, or --rounds; fails where one loses over 2 %."""
  seeds = options.rounds or 20
  if seeds <= NUM_SIMULATIONS:
    raise ValueError(f'--rounds must be above {NUM_SIMULATIONS}, got {seeds}')
  rows, lines, failed = [], [], False
  fixed = dict(noise_multiplier=NOISE_MULTIPLIER, delta=DELTA, num_simulations=NUM_SIMULATIONS)
  flags = [f'--{name}={value}' for name, value in fixed.items()]
  for name, words in options.select(CASES).items():
    judging = call('plans', 'judge', words, seeds)
    judged = runner.once(Side(judging, timeout=7200.0, shows_progress=True))
    command = Side([runner.PROGRAM, 'plan', *words, *flags, '--json'], 2, 1800.0, json.loads)
    (runs,) = runner.turns(name, {'the command': command}, 1).values()
    lines.append(forecast(name, judged['outcomes'], runs))
    for most in MAX_COPIES:
      verdicts = [verdict for verdict in judged['verdicts'] if verdict['max_copies'] == most]
      rows.append({'name': name, 'max_copies': most, 'command': runs, **summary(verdicts)})
      failed |= bool(runs.failures) or any(v['excess'] > LIMIT for v in verdicts)
  blocks = [runner.table(TABLE, rows), '\n'.join(lines)]
  runner.write(options, __doc__, 'plan', blocks, rows, runner.versions('numpy', 'scipy'))
  return int(failed)
