"""Learning rates beyond a grid, where its best one is at an end."""

from collections.abc import Mapping, Sequence

from experiments.stackoverflow.study import results, study_file

_DIGITS = 4  # of a rate


def further(
  study: study_file.Study, found: Sequence[results.Result]
) -> Mapping[study_file.Setting, float]:
  """Returns the next rate of each setting whose best rate is at an end of those tried.

  It continues the grid with the ratio of its last two rates. A setting with a
  single rate has no grid, and one with `extend_rates` further rates no more.
  The same results give the same rates, so that a study that is resumed has the
  same cells.
  """
  chosen = results.chosen_rates(study, found)
  rates = results.tried_rates(study, found)
  return {
    setting: _beyond(rates[setting], best)
    for setting, best in chosen.items()
    if len(setting.server_learning_rates) > 1
    and len(rates[setting]) < len(setting.server_learning_rates) + study.extend_rates
    and best in (rates[setting][0], rates[setting][-1])
  }


def _beyond(rates: Sequence[float], end: float) -> float:
  inner = rates[1] if end == rates[0] else rates[-2]
  return float(f'{end * end / inner:.{_DIGITS}g}')
