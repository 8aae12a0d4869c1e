"""What the lowest bits of a release tell of one device.

Rounds with and without the device, of 131,072 coordinates, noise multiplier 7.379. The device sends
an update of nearly the clip norm, or takes no part, among nineteen that send zeros. The attacker
counts coordinates next to 0 that are off the grid of a float32 sum with the update. One half of the
rounds teaches him; the other half judges him. The interval of his advantage over chance is for a
confidence of 99.9 %; where it holds 0, he knows nothing. See docs/decisions/arithmetic.md.
"""

from benchmarks import runner
from benchmarks.runner import Side, call

FLOATS = 'float32 sums'
TABLE = (
  'strategy={strategy}|noise={noise}|count with={with:.2f}|without={without:.2f}|'
  'advantage={advantage:+.3f}|interval={low:+.3f} to {high:+.3f}'
)


def main(options: runner.Options) -> int:
  """Attacks every family for 1,000 rounds or --rounds; fails if float32 sums hide or ours tell."""
  from fl_dpftrl.mechanisms import family_registry

  attacked = [('identity', FLOATS)]
  attacked += [
    (name, noise) for noise in ('engine', 'state') for name in sorted(family_registry.FAMILIES)
  ]
  rounds, rows = options.rounds or 1000, []
  for name, noise in attacked:
    side = Side(call('attack', 'attack', noise, name, rounds), timeout=1800.0)
    rows.append({'strategy': name, 'noise': noise, **runner.once(side)})
    print(runner.table(TABLE, rows[-1:]))
  about = runner.versions('numpy', 'tensorflow')
  blocks = [f'{rounds:,} rounds with and as many without.', runner.table(TABLE, rows)]
  runner.write(options, __doc__, 'attack', blocks, rows, about)
  told = [row['strategy'] for row in rows[1:] if not row['low'] <= 0.0 <= row['high']]
  print(f'more than chance: {", ".join(told) or "none"}')
  return int(bool(told) or rows[0]['low'] < 0.9)
