"""The `forget` command: erases ids from a population whose logs hold names."""

import argparse
import pathlib

from fl_dpftrl.logs import population_ledger
from fl_dpftrl.run import shared_budgets
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

EXAMPLE = 'fl-dpftrl forget fleet --names=names/names.db --salt=keys/salt --ids=erase.txt'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('population', metavar='POPULATION', help='folder of the population, which has names')
  add('--names', metavar='FILE', required=True, help='its table of names')
  add('--salt', metavar='FILE', required=True, help='its secret salt')
  words = 'text file of ids, one a line; erase several at a time, as one that is alone can be told'
  add('--ids', metavar='FILE', required=True, help=words)


def run(args: argparse.Namespace) -> json_files.Object:
  """Erases the ids."""
  try:
    ids = pathlib.Path(args.ids).read_text('utf-8').split('\n')
  except UnicodeDecodeError:
    raise ValueError(f'--ids={messages.quoted(args.ids)} is no text in UTF-8') from None
  ids = [line for line in ids if line]
  if not ids:
    raise ValueError(f'--ids={messages.quoted(args.ids)} has no id')
  if not (pathlib.Path(args.population) / population_ledger.NAME).exists():
    raise ValueError(f'{messages.quoted(args.population)} is no folder of a population')
  population = shared_budgets.Population(args.population, names=args.names, salt=args.salt)
  return {'num_ids': len(ids), 'num_erased': population.forget(ids)}


def show(result: json_files.Object) -> str:
  """Formats how many had a name."""
  return (
    f'{result["num_erased"]} of {result["num_ids"]} ids had a name and were erased; none of the'
    f' {result["num_ids"]} takes part again'
  )
