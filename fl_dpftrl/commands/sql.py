"""The `sql` command: the statement by which a warehouse counts the participation of a run."""

import argparse

from fl_dpftrl.commands import flags, output
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.prove.replaying import counted, sql_statement
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import durable, json_files

EXAMPLE = (
  'fl-dpftrl sql --strategy=blt-b400 --num_rounds=2052 --dialect=bigquery --output=replay.sql'
  ' --gram=gram.parquet'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add(parser, 'strategy', 'num_rounds', required=True)
  add = parser.add_argument
  add(
    '--dialect',
    choices=sql_statement.DIALECTS,
    required=True,
    help='engine that runs the statement',
  )
  add('--output', metavar='FILE.sql', required=True, help='file to write with the statement')
  words = (
    '.parquet or .csv file to write with the terms of the strategy, a row for each pair of rounds,'
    ' to load as the table gram'
  )
  add('--gram', metavar='FILE', required=True, help=words)


def run(args: argparse.Namespace) -> json_files.Object:
  """Writes the statement and its table."""
  output.check_file('output', args.output, '.sql')
  output.check_file('gram', args.gram)
  strategy = files.resolved(args.strategy, args.num_rounds)
  terms = sql_statement.gram(strategy, args.num_rounds)
  text = sql_statement.statement(strategy, args.num_rounds, args.dialect)
  counted.write_table(args.gram, terms)
  durable.write_durably(args.output, text.encode())
  return {
    'strategy': args.strategy,
    'num_rounds': args.num_rounds,
    'dialect': args.dialect,
    'output': args.output,
    'gram': args.gram,
    'gram_rows': terms.num_rows,
  }


def show(result: json_files.Object) -> str:
  """Names the files, and what to do with them."""
  return (
    f'{tables.table(result)}\n\nRun {result["output"]} where its tables are, and then'
    f' fl-dpftrl replay --from_counts=RESULT --strategy={result["strategy"]}'
    f' --num_rounds={result["num_rounds"]}'
  )
