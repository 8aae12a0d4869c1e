"""Rows of noise and rounds beside a GPU.

Needs JAX with a GPU in the environment that runs it. Rows are made by the processor; beside them
are as many float32 normals of JAX, which the GPU makes, and which are neither secret nor whole
numbers. A round of the LSTM of the papers (4,050,748 parameters) has 100 clients of 64 sentences of
20 words, in 4 batches each, whose updates JAX computes together. A round of fine-tuning is that of
`make finetune`: 40 people of one block of 64 tokens, and 30 layers of 576, of which 15 have
additions, with weights that are drawn. `PrivateAggregator` releases both, with a BLT. Milliseconds:
median (least–most).
"""

import statistics
from typing import Any

from benchmarks import rounds, runner
from benchmarks.runner import Side, call

# Threads by parameters.
SIZES = {rounds.NUM_PARAMETERS: (1, 4, 16), rounds.LARGE: (1, 16)}
STRATEGIES = ('identity', 'blt-4')
PLATFORMS = {'cuda': 'GPU', 'cpu': 'processor'}
WORK = {'lstm': 'LSTM, 100 clients', 'finetune': 'fine-tuning, 40 people'}
ROWS = (
  'strategy={strategy}|parameters={size:,}|threads={threads}|a row={seconds}|'
  'normals on the GPU={made}|and in memory={fetched}|row over these={over:.1f}×'
)
ROUNDS = (
  'round={work}|updates by={platform}|updates={computing}|to memory={fetching}|'
  'sum, noise and files={releasing}|whole round={seconds}'
)


def side(platform: str, *words: Any) -> Side:
  """Returns a side on all cores, whose JAX uses a platform."""
  variables = {'JAX_PLATFORMS': platform, 'XLA_FLAGS': ''}
  return Side(call('gpu', *words), runner.cores(), 300.0, environment=variables)


def rows(repeats: int) -> list[dict[str, Any]]:
  """Times rows by the processor, and normals by the GPU."""
  measured = []
  for size, some in SIZES.items():
    normals = runner.once(side('cuda', 'normals', size, repeats))
    normals['made'] = runner.spread([1e3 * seconds for seconds in normals['normals']])
    for strategy in STRATEGIES:
      for threads in some:
        command = call('noise', 'measure', strategy, size, threads, min(repeats, 3))
        row = runner.once(Side(command, threads, 300.0))
        row = normals | dict(strategy=strategy, size=size, threads=threads, seconds=row['seconds'])
        row['over'] = statistics.median(row['seconds']) / statistics.median(row['fetched'])
        measured.append(row)
        print(runner.table(ROWS, [row]).splitlines()[-1])
  return measured


def main(options: runner.Options) -> None:
  """Times rows and rounds, nine of each but for --rounds, and writes the page."""
  repeats = options.rounds or 9
  about = runner.versions('numpy', 'jax')
  device = runner.once(side('cuda', 'device'))
  noise, trained = rows(repeats), []
  for work, name in WORK.items():
    for platform, shown in PLATFORMS.items():
      times = repeats if platform == 'cuda' else min(repeats, 3)
      row = runner.once(side(platform, 'measure', work, times))
      trained.append(dict(work=name, platform=shown, **row))
      print(runner.table(ROUNDS, trained[-1:]).splitlines()[-1])
  blocks = [f'GPU: {device}.', '## Rows', runner.table(ROWS, noise)]
  blocks += ['## Rounds', runner.table(ROUNDS, trained)]
  runner.write(options, __doc__, 'gpu', blocks, dict(noise=noise, rounds=trained), about)
