"""Recipes of the strategy files in this folder.

`python -m matrices.recipes` writes all files, or those given by name. The same
release writes the same files.
"""

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.families import blt
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation.rules import loss_budgets, separations
from fl_dpftrl.planning import optimization


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a strategy file is made.

  Attributes:
    made: a strategy with fixed parameters, the same in every release; or the name of a mechanism,
      whose best strategy is optimised anew.
    several: schemas of which one will hold: then the strategy with the least worst regret over
      them is optimised, not the best for `schema`. Or the budget of a run without an end, with the
      horizons in `size`.
  """

  made: base.Strategy | str
  schema: separations.MinSep
  objective: str = 'max'
  size: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  several: Sequence[separations.MinSep] | loss_budgets.LossBudget = ()

  def make(self) -> base.Strategy:
    if isinstance(self.made, base.Strategy):
      return self.made
    return optimization.optimize(
      self.made, self.several or self.schema, objective=self.objective, **self.size
    )


def _unknown() -> tuple[separations.MinSep, ...]:
  """Returns a coarse grid of schemas that are common in federated training.

  It has 500 to 8,000 rounds, min-sep 50 to 1,000 and 2 to 20 participations.
  """
  every = {
    separations.MinSep(n, b, min(k, -(-n // b)))
    for n in (500, 1250, 3000, 8000)
    for b in (50, 220, 1000)
    for k in (2, 5, 20)
    if b <= n
  }
  return tuple(sorted(every, key=dataclasses.astuple))


_PAPERS = separations.MinSep(2052, 342, 6)

RECIPES: dict[str, Recipe] = {
  # In production: McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), appendix.
  'blt-b100-published': Recipe(
    blt.BLT(
      (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
      (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
    ),
    separations.MinSep(2000, 100, 10),
  ),
  'blt-b400': Recipe(
    blt.BLT(
      (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
      (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    separations.MinSep(4000, 400, 5),
  ),
  'blt-b1000': Recipe(
    blt.BLT(
      (0.9999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
      (0.008657392263671862, 0.05890891298181146, 0.14548176930698697, 0.2770117005326523),
    ),
    separations.MinSep(4000, 1000, 2),
  ),
  # The published BLT for this schema is a local optimum. This one was found by the optimiser of
  # BLTs, and is fixed because runs have used it.
  'blt-b100': Recipe(
    blt.BLT(
      (0.9999999999995761, 0.9810489346691783, 0.6131226198097183),
      (0.008398612540113731, 0.22183088023324485, 0.2707417807122135),
    ),
    separations.MinSep(2000, 100, 10),
  ),
  # The setting of the papers' simulations.
  'blt-b342-rms': Recipe('blt', _PAPERS, 'rms', {'num_buffers': 4}),
  'blt-b342-max': Recipe('blt', _PAPERS, 'max', {'num_buffers': 5}),
  'toeplitz-b342-rms': Recipe('banded_toeplitz', _PAPERS, 'rms'),
  'toeplitz-b342-max': Recipe('banded_toeplitz', _PAPERS),
  # For runs with an unknown schema; its figures are for a middling one.
  'default': Recipe(
    'blt', separations.MinSep(2000, 200, 10), size={'num_buffers': 4}, several=_unknown()
  ),
  # For runs without an end: their regret over the horizons is 14 and 15 %.
  'blt-b342-endless': Recipe(
    'blt',
    _PAPERS,
    size={'num_buffers': 3, 'horizons': (205, 20520)},
    several=loss_budgets.LossBudget(max_participations=6, min_sep=342),
  ),
  'blt-b40-endless': Recipe(
    'blt',
    separations.MinSep(200, 40, 5),
    size={'num_buffers': 3, 'horizons': (20, 2000)},
    several=loss_budgets.LossBudget(max_participations=5, min_sep=40),
  ),
  # Small enough to read, and for a first run.
  'banded-b16': Recipe('banded', separations.MinSep(256, 16)),
}


def write(name: str, folder: str | os.PathLike[str]) -> files.StrategyFile:
  """Makes a strategy by its recipe and writes its file."""
  recipe = RECIPES[name]
  return files.save_strategy(
    os.path.join(folder, f'{name}.json'),
    recipe.make(),
    schema=recipe.schema,
    objective=recipe.objective,
  )


def main(argv: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(description='Rewrites matrices/.')
  parser.add_argument('names', nargs='*', metavar='NAME', help='recipes to write (default: all)')
  args = parser.parse_args(argv)
  unknown = sorted(set(args.names) - set(RECIPES))
  if unknown:
    parser.error(f'no recipe for {", ".join(unknown)}')
  for name in args.names or RECIPES:
    file = write(name, files.matrices_folder())
    loss = file.figures[f'{file.objective}_loss']
    print(f'{name}: {file.objective}_loss {loss:.6g}', file=sys.stderr)


if __name__ == '__main__':
  main()
