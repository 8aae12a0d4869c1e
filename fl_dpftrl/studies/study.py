"""A study: its runs as a table, figures and a page."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fl_dpftrl import tables
from fl_dpftrl.files import durable
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import results as results_lib
from fl_dpftrl.studies import table

if TYPE_CHECKING:
  import pandas
  from matplotlib import figure as figure_lib

_SHOWN = 6  # columns of a table at a prompt


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Study:
  """Mechanisms compared by training.

  Attributes:
    design: what is compared, with which rates and seeds.
    results: result of each run.
    folder: folder of the study.
    looks: numbers of seeds at which a study that adds seeds looked at the results, by ε.
  """

  design: design_lib.Design
  results: tuple[results_lib.Result, ...]
  folder: pathlib.Path
  looks: Mapping[float, tuple[int, ...]] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def rows(self) -> list[results_lib.Row]:
    """A row for each mechanism at each ε, at the learning rate that validation data chose."""
    return results_lib.rows(self.design, self.results, self.looks)

  @property
  def failed(self) -> tuple[results_lib.Result, ...]:
    """Runs that failed; the same call tries them again."""
    return tuple(result for result in self.results if result.status == results_lib.FAILED)

  def to_pandas(self) -> 'pandas.DataFrame':
    """Returns a data frame with a row a run, as results.csv has them.

    Raises:
      ImportError: if pandas is not installed.
    """
    return tables.frame(results_lib.lines(self.design, self.results))

  def plot(self, name: str | None = None) -> 'figure_lib.Figure':
    """Draws a figure of the study's page.

    Args:
      name: 'difference_to_best', 'accuracy_by_round', 'accuracy_by_rate', 'accuracy_by_noise' or
        'accuracy_by_epsilon', the default; with the name of another metric for 'accuracy'.

    Raises:
      ValueError: if there is no such figure, or nothing to draw in it.
    """
    drawn, name = self.figures(), name or f'{self.design.metric.key}_by_epsilon'
    if name not in drawn:
      raise ValueError(f'name must be one of {", ".join(drawn) or "none yet"}, got {name!r}')
    return drawn[name]

  def figures(self) -> dict[str, 'figure_lib.Figure']:
    """Returns the figures that there is something to draw for, by name."""
    from fl_dpftrl.studies import contrasts, figures  # Load matplotlib.

    design, rows, key = self.design, self.rows, self.design.metric.key
    made = {
      f'{key}_by_epsilon': figures.by_epsilon(design, rows),
      'difference_to_best': contrasts.difference_to_best(design, rows),
      f'{key}_by_round': figures.by_round(design, rows),
      f'{key}_by_rate': figures.by_rate(design, self.results, rows),
      f'{key}_by_noise': contrasts.by_noise(design, rows),
    }
    return {name: figure for name, figure in made.items() if figure is not None}

  def write(self, *, image_kind: str = 'png') -> None:
    """Writes results.csv, the table, the figures and the page into the folder.

    Args:
      image_kind: kind of the figures' files: 'png', 'svg' or 'pdf'.
    """
    from fl_dpftrl.drawing import style
    from fl_dpftrl.studies import page

    results_lib.write_csv(self.folder / 'results.csv', results_lib.lines(self.design, self.results))
    texts = {
      'table.txt': table.text(self.rows) + '\n',
      'table.md': table.markdown(self.design, self.rows),
    }
    images = {}
    for name, figure in self.figures().items():
      images[name] = style.image(figure, 'png')
      shown = images[name] if image_kind == 'png' else style.image(figure, image_kind)
      durable.write_durably(self.folder / f'{name}.{image_kind}', shown)
    texts['study.html'] = page.study_page(self, images)
    for name, text in texts.items():
      durable.write_durably(self.folder / name, text.encode())

  def __repr__(self) -> str:
    lines = tables.columns(self._shown()).splitlines()
    return tables.at_a_prompt(self._title(), lines)

  def _repr_html_(self) -> str:
    return tables.as_html(self._title(), self._shown())

  def _title(self) -> str:
    failed = f', {len(self.failed)} failed' if self.failed else ''
    return f'{self.design.title}: {len(self.results)} runs{failed}, in {self.folder}'

  def _shown(self) -> list[dict[str, Any]]:
    head = table.head(self.design.metric)[:_SHOWN]
    return [dict(zip(head, cells)) for cells in table.cells(self.rows)]
