"""Draws a study of fine-tuning for README: python .ci/people.py RESULTS.csv BEFORE OUTPUT.svg

RESULTS.csv is that of `python -m experiments.finetune.study`; BEFORE is the perplexity of the
pretrained model on the same people.
"""

import csv
import pathlib
import sys

import numpy as np

from fl_dpftrl.study import result_tables
from fl_dpftrl.support import style

_NAMES = {
  'no noise': 'without noise',
  'blt': 'BLT noise, ε = 2',
  'identity': 'independent noise, ε = 2',
}


def main(results: pathlib.Path, before: float, output: pathlib.Path) -> None:
  """Draws a row of points for each mechanism, with their mean and its interval."""
  with results.open(encoding='utf-8') as file:
    rows = [row for row in csv.DictReader(file) if row['epsilon'] in ('', '2.0')]
  figure = style.Figure(figsize=(5.4, 2.4), layout='constrained')
  axes, looks = figure.subplots(), style.looks({name: name for name in _NAMES})
  for height, mechanism in enumerate(_NAMES):
    values = [float(row['test']) for row in rows if row['mechanism'] == mechanism]
    mean, colour = np.mean(values), looks[mechanism]['color']
    axes.plot(values, np.full(len(values), height + 0.2), '|', color=style.GREY, markersize=7)
    axes.errorbar(mean, height, xerr=result_tables.margin(values), fmt='o', color=colour, capsize=3)
    place = {'textcoords': 'offset points', 'ha': 'center', 'fontsize': 10, 'color': style.INK}
    axes.annotate(f'{mean:.1f}', (mean, height), (0, 7), **place)
  axes.axvline(before, color=style.INK, linestyle=':')
  axes.annotate('before training', (before, 0.5), (-5, 0), **{**place, 'ha': 'right'})
  style.dress(axes)
  axes.set_yticks(range(len(_NAMES)), list(_NAMES.values()))
  axes.set_ylim(len(_NAMES) - 0.4, -0.6)
  axes.set_xlabel('perplexity of held-out people; lower is better')
  output.write_bytes(style.image(figure, output.suffix[1:]))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), float(sys.argv[2]), pathlib.Path(sys.argv[3]))
