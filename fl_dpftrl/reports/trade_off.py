"""The trade-off between the two errors of an attacker, under Gaussian differential privacy."""

from typing import NamedTuple

import numpy as np
from matplotlib import patches, ticker, transforms
from scipy import special

from fl_dpftrl import rounding
from fl_dpftrl.reports import svg

_SHARES = (0.01, 0.05, 0.1)  # of false positives
_REACH = 8.0  # standard deviations beyond which an error is 0 or 1
_STEPS = 400
_DOT = 2.6  # radius in points


class Errors(NamedTuple):
  """A point of the curve: shares of false positives and false negatives, 0 to 1."""

  false_positives: float
  false_negatives: float


def least_false_negatives(mu: float, false_positives: float) -> float:
  """Returns the least share of false negatives of a test with that share of false positives.

  Source: Dong, Roth and Su 2022, equation 6: G_μ(α) = Φ(Φ⁻¹(1 − α) − μ).
  """
  return float(special.ndtr(-special.ndtri(false_positives) - mu))


def examples(mu: float) -> tuple[Errors, ...]:
  """Returns a few points of the curve."""
  return tuple(Errors(share, least_false_negatives(mu, share)) for share in _SHARES)


def curve(mu: float) -> svg.Figure:
  """Draws the least false negatives by false positives, beside those of blind guessing."""
  thresholds = np.linspace(-_REACH, _REACH + mu, _STEPS)
  axes = svg.new_axes('share of false positives')
  axes.plot([0.0, 1.0], [1.0, 0.0], color=svg.SOFT, linewidth=1.2, dashes=(4, 3))
  axes.plot(
    special.ndtr(-thresholds), special.ndtr(thresholds - mu), color=svg.ACCENT, linewidth=1.8
  )
  for point in examples(mu):
    name = (
      f'{point.false_positives:.0%} false positives, at least {_percent(point)} % false negatives'
    )
    place = transforms.ScaledTranslation(*point, axes.transData)  # type: ignore[arg-type]
    dot = patches.Circle(
      (0.0, 0.0),
      _DOT / 72.0,
      transform=axes.figure.dpi_scale_trans + place,
      color=svg.ACCENT,
      gid=svg.TIP + name,
      clip_on=False,
    )
    axes.add_artist(dot)  # A marker would be a reference.
  axes.set_xlim(0.0, 1.0)
  axes.set_ylim(0.0, 1.0)
  for axis in (axes.xaxis, axes.yaxis):
    axis.set_major_locator(ticker.MultipleLocator(0.25))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f'{value:g}'))
  shown = f'μ = {rounding.up(mu)}'
  for x, y, words, colour in (
    (0.97, 0.9, 'blind guessing, dashed', svg.SOFT),
    (0.97, 0.78, shown, svg.ACCENT),
  ):
    axes.text(x, y, words, color=colour, fontsize=svg.FONT, ha='right', va='center')
  listed = '; '.join(f'{p.false_positives:.0%} and at least {_percent(p)} %' for p in examples(mu))
  title = 'Least share of false negatives'
  return svg.finish(axes, title, f'{title}, by share of false positives, for {shown}: {listed}')


def _percent(point: Errors) -> str:
  return rounding.down(100.0 * point.false_negatives, digits=3)
