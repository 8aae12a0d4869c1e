"""The `describe` command: figures of a strategy under any schema and workload."""

import argparse

from fl_dpftrl.commands import flags
from fl_dpftrl.mechanisms import linear_noise, workloads
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.support import checks, tables
from fl_dpftrl.support.files import json_files

EXAMPLE = 'fl-dpftrl describe blt-b400 --num_rounds=2052 --min_sep=342 --max_participations=6'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument(
    'strategy',
    metavar='STRATEGY',
    help='strategy file, name in matrices/, or parameter-free family',
  )
  flags.add_schema(parser, required=False)
  words = 'a run without an end: its sensitivity, with errors after --num_rounds'
  flags.add_loss_budget(parser, words)
  flags.add_workload(parser, 'default: that of the file, else prefix')
  parser.add_argument(
    '--num_parameters',
    type=int,
    help='number of model parameters; adds the memory of the noise, and the seconds that the middle'
    ' row takes one core of this machine',
  )


def run(args: argparse.Namespace) -> json_files.Object:
  """Returns the figures under the flags' schema, by default the file's own."""
  if args.strategy in files.parameter_free():
    file = None
    strategy = files.load_strategy(args.strategy)
  else:
    file = files.load(args.strategy)
    strategy = file.strategy
  schema_flags = (args.num_rounds, args.min_sep, args.max_participations)
  budget = flags.loss_budget(args, ('separation',))
  if schema_flags == (None, None, None) and file is not None:
    file_schema = {**vars(file.schema), 'separation': file.schema.separation}
    for name, value in file_schema.items():
      if getattr(args, name) is None:
        setattr(args, name, value)
  schema = flags.schema(args)
  default = workloads.Workload() if file is None else file.workload
  workload = flags.workload(args, default)
  rows_drawn, most = linear_noise.rows_drawn(strategy.noise(schema.num_rounds), schema.num_rounds)
  costs: json_files.Object = {'rows_drawn': rows_drawn, 'most_rows_drawn': most}
  if args.num_parameters is not None:
    # It loads the compiler of loops, which the other figures do not need.
    from fl_dpftrl.noise import integer_rows, recurrence

    size = checks.whole(num_parameters=args.num_parameters)
    costs['memory_bytes'] = recurrence.buffer_bytes(strategy, schema.num_rounds, size)
    seconds = integer_rows.row_seconds(strategy, num_rounds=schema.num_rounds, size=size)
    costs['row_seconds'] = float(f'{seconds:.2g}')
  bound = None if budget is None else budget.worst_case(strategy)
  evaluated = files.describe(strategy, schema=schema, workload=workload, sensitivity=bound)
  return {
    'strategy': args.strategy,
    'mechanism': strategy.family,
    **schema.numbers,
    **({} if budget is None else {'loss_budget': budget.square(strategy)}),
    'separation': schema.separation,
    **flags.workload_fields(workload),
    **evaluated.figures,
    'memory_copies': strategy.memory_copies(schema.num_rounds),
    **costs,
  }


def show(result: json_files.Object) -> str:
  """Formats the figures as a table."""
  return tables.table(result)
