"""Text output of the `plan` command."""

from typing import Any

from fl_dpftrl import messages, rounding
from fl_dpftrl.commands import flags
from fl_dpftrl.reports import plan_strategies

_OPTIONS = 'all strategies, at the same ε and at the same noise in the model'
_SETTINGS = 'report goals and rounds, at the same noise in the model'


def text(result: dict[str, Any]) -> str:
  """Returns the recommendation, its alternatives and its assumptions as text."""
  count = len(result['simulations'])
  came_to = f'results of {count} simulation{"s" * (count > 1)}'
  possible = [s for s in result['settings'] if 'epsilon' in s]
  lines = [
    *_recommended(result),
    '',
    came_to,
    '',
    flags.columns(_forecast(result)),
    '',
    _OPTIONS,
    '',
    flags.columns(_options(result)),
    '',
    _SETTINGS,
    '',
    flags.columns(possible),
    *_left_out(result),
    '',
    'This is no guarantee: replay the log of the run for that. It assumes:',
    '',
    *(f'- {line}' for line in result['assumptions']),
    '',
  ]
  written = [result[n] for n in ('output', 'report') if result[n] is not None]
  if result['output'] is None:
    lines.append('add --output=FILE.json to write the strategy file')
  if written:
    lines.append(f'written: {", ".join(map(messages.one_line, written))}')
  return '\n'.join(lines)


def _recommended(result: dict[str, Any]) -> list[str]:
  best, planned = result['recommended'], result['planned']
  seen = ' to '.join(dict.fromkeys(map(rounding.up, best['epsilon_range'])))
  optimised = ', optimised for this' if best['optimised'] else ''
  at = f'ε at δ = {rounding.exact(best["delta"])}'
  return [
    'recommended (a prediction, not a guarantee)',
    '',
    f'strategy            {messages.one_line(best["strategy"])}{optimised};'
    f' {best["memory_copies"]} copies of the model',
    'noise multiplier    ' + rounding.up(best['noise_multiplier'], digits=6),
    f'{at:<20}{rounding.up(best["epsilon"])}  ({seen} in the simulations)',
    f'planned for         n = {planned["num_rounds"]}, b ='
    f' {planned["min_sep"]}, k = {planned["max_participations"]}',
  ]


def _forecast(result: dict[str, Any]) -> list[dict[str, Any]]:
  return [
    {
      '': name,
      'expected': _expected(name, float(mean)),
      'lowest': result['range'][name][0],
      'highest': result['range'][name][1],
    }
    for name, mean in result['expected'].items()
  ]


def _expected(name: str, mean: float) -> float:
  """Rounds a mean over simulations; min-sep is rounded down, all else up."""
  shown = rounding.down if name == 'min_sep' else rounding.up
  return float(shown(mean, digits=6))


def _options(result: dict[str, Any]) -> list[dict[str, Any]]:
  best = result['recommended']
  rows = [
    {
      'strategy': best['strategy'],
      'copies': best['memory_copies'],
      'loss': best['loss'],
      'noise at same ε': 'recommended',
      'ε at same noise': rounding.up(best['epsilon']),
    }
  ]
  rows += [
    {
      'strategy': option['strategy'],
      'copies': option['memory_copies'],
      'loss': option['loss'],
      'noise at same ε': plan_strategies.percent(option['loss_ratio']),
      'ε at same noise': rounding.up(option['same_noise_epsilon']),
    }
    for option in result['alternatives']
  ]
  return sorted(rows, key=lambda row: row['loss'])


def _left_out(result: dict[str, Any]) -> list[str]:
  lines = [f'{skip["label"]}: {skip["reason"]}' for skip in result['skipped']]
  lines += [
    f'report goal {s["report_goal"]}, {s["num_rounds"]} rounds: {s["reason"]}'
    for s in result['settings']
    if 'reason' in s
  ]
  lines = [f'- {messages.one_line(line)}' for line in lines]
  return ['', 'left out', *lines] if lines else []
