"""Sentences on the results of a study: order, independent noise, and the losses."""

import statistics
from collections.abc import Iterator, Sequence

from fl_dpftrl.studies import intervals, prediction, results
from fl_dpftrl.studies import metric as metric_lib

_INDEPENDENT = 'identity'
_ENOUGH_SEEDS = 3
# Accuracy by which noise may look better than none before the runs are called untuned.
_NOISE_HELPS = 0.005


def glance(rows: Sequence[results.Row]) -> list[tuple[str, ...]]:
  """Returns a table with a head and a line for each ε."""
  metric = rows[0].metric
  value = metric.label(f'test {metric.name}')
  lines: list[tuple[str, ...]] = [
    ('ε', 'best mean', value, 'not told apart from it', 'worse than it', 'how sure')
  ]
  for epsilon, level in results.levels(rows).items():
    if not level:
      lines.append((f'{epsilon:g}', *('–',) * 4, 'no run has ended'))
      continue
    best, others = level[0], level[1:]
    worse = [row.label for row in others if row.verdict == 'worse']
    tied = [row.label for row in others if row.verdict != 'worse']
    lines.append(
      (
        f'{epsilon:g}',
        best.label,
        metric.number(best.mean, best.deviation),
        ', '.join(tied) or '–',
        ', '.join(worse) or '–',
        _certainty(level),
      )
    )
  return lines


def _certainty(level: Sequence[results.Row]) -> str:
  """Returns how far the seeds of one ε tell its mechanisms apart."""
  seeds = min(len(row.tests) for row in level)
  if len(level) < 2:
    return 'nothing to compare with'
  if seeds < 2:
    return 'one seed proves no order'
  clear, total = _told_apart(level)
  return f'{seeds} seeds tell {clear} of {total} pairs apart'


def summary(rows: Sequence[results.Row]) -> str:
  """Returns three sentences: what was trained, what is best, and how sure that is."""
  levels, metric = results.levels(rows), rows[0].metric
  counts = {len(row.tests) for row in rows if row.setting.mechanism is not None} or {0}
  seeds = f'{"up to " if len(counts) > 1 else ""}{max(counts)} seed{"s"[: max(counts) != 1]}'
  noisy = list(dict.fromkeys(r.label for r in rows if r.setting.mechanism is not None))
  values = _listed([f'{epsilon:g}' for epsilon in levels])
  tuned = any(len(row.setting.server_learning_rates) > 1 for row in rows)
  rate = 'the learning rate that validation data chose' if tuned else 'a given learning rate'
  trained = f'{len(noisy)} mechanisms were trained at ε = {values}, each with {seeds} at {rate}.'
  if not any(levels.values()):
    return trained
  best = [
    f'{metric.shown(level[0].mean)} at ε = {epsilon:g} ({level[0].label})'
    for epsilon, level in levels.items()
    if level
  ]
  pairs = [_told_apart(level) for level in levels.values()]
  clear, total = (sum(counts) for counts in zip(*pairs))
  bounds = []
  if (silent := results.without_noise(rows)) is not None:
    bounds.append(f'the model reaches {metric.shown(silent.mean)} without noise')
  if (height := results.baseline(rows)) is not None:
    bounds.append(f'the best constant prediction has {metric.shown(height)}')
  told = f'The seeds tell {clear} of {total} pairs of mechanisms apart'
  return (
    f'{trained} The best mean test {metric.name} is {_listed(best)}. {"; ".join([told, *bounds])}.'
  )


def _listed(words: Sequence[str]) -> str:
  """Returns words joined by commas, the last by 'and'."""
  return ' and '.join([', '.join(words[:-1]), words[-1]]) if len(words) > 1 else ''.join(words)


def few_seeds(rows: Sequence[results.Row]) -> list[str]:
  """Returns what to do where seeds are too few to tell much apart; nothing else."""
  seeds = max((len(row.tests) for row in rows), default=0)
  if not 0 < seeds < _ENOUGH_SEEDS:
    return []
  factors = {1: 'one seed has no interval at all', 2: 'with 2 seeds it is 12.7 standard errors'}
  return [
    f'A 95 % interval of few seeds is wide: {factors[seeds]} on either side, with'
    f' {_ENOUGH_SEEDS} it is 4.3. Add seeds and run the study again; runs that have ended are'
    ' kept.'
  ]


def verdicts(rows: Sequence[results.Row]) -> list[str]:
  """Returns a sentence or two for each ε: the best mechanism, ties, clear losers, order."""
  sentences, metric = [], rows[0].metric
  for epsilon, level in results.levels(rows).items():
    if not level:
      sentences.append(f'ε = {epsilon:g}: no run has ended.')
      continue
    best = level[0]
    groups: dict[str, list[str]] = {}
    for row in level[1:]:
      groups.setdefault(row.verdict, []).append(row.label)
    parts = [f'{best.label} has the best mean {metric.name}, {metric.shown(best.mean)}']
    for verdict, words in (
      ('tied with the best', 'not told apart from it by these seeds'),
      ('worse', f'{metric.worse} it by more than seeds explain'),
      (
        'unknown: one seed',
        f'{metric.worse} it in the one seed that there is, which proves no order',
      ),
    ):
      if groups.get(verdict):
        parts.append(f'{words}: {", ".join(groups[verdict])}')
    sentences.append(f'ε = {epsilon:g}: {"; ".join(parts)}. {_order(level)}'.rstrip())
  return sentences


def _order(level: Sequence[results.Row]) -> str:
  """Returns the order of mechanisms, with what these seeds tell apart."""
  if len(level) < 2 or all(len(row.tests) < 2 for row in level):
    return ''
  names = [level[0].label]
  for above, below in zip(level, level[1:]):
    difference = intervals.paired(above.gains, below.gains, above.looks)
    is_clear = difference is not None and difference.is_clear
    sign = ('<' if above.metric.lower_is_better else '>') if is_clear else '≈'
    names.append(f'{sign} {below.label}')
  clear, total = _told_apart(level)
  order = f'In order: {" ".join(names)}'
  legend = ', where ≈ joins neighbours that these seeds do not tell apart' if '≈' in order else ''
  pairs = f'; seeds tell {clear} of {total} pairs apart' if total > 1 else ''
  return f'{order}{legend}{pairs}.'


def _told_apart(level: Sequence[results.Row]) -> tuple[int, int]:
  """Returns how many pairs of mechanisms the seeds tell apart, and how many there are."""
  clear = total = 0
  for place, above in enumerate(level):
    for below in level[place + 1 :]:
      difference = intervals.paired(above.gains, below.gains, above.looks)
      total += 1
      clear += difference is not None and difference.is_clear
  return clear, total


def against_independent(rows: Sequence[results.Row]) -> list[str]:
  """Returns how correlated noise compares with independent noise, at each ε and overall.

  The mean over mechanisms with correlated noise is one comparison for each ε, so
  that no best of several is selected by its result. A setting with independent noise is
  compared with those of the same flags.
  """
  sentences: list[str] = []
  metric = rows[0].metric
  clear: list[tuple[str, float | None]] = []
  unclear: list[tuple[str, float | None]] = []
  for epsilon, independent, others in _beside_independent(rows):
    mean = intervals.paired(_mean_by_seed(others), independent.gains, independent.looks)
    parts = [f'{independent.label} reaches {metric.shown(independent.mean)}']
    parts += [f'{words}: {", ".join(labels)}' for words, labels in _beside(independent, others)]
    if mean is not None:
      value = metric.number(metric.gain(mean.mean), mean.margin, digits=3)
      parts.append(
        f'the mean of mechanisms with correlated noise ({len(others)}) differs from it by'
        f' {_signed(value)}{metric.points}'
      )
      (clear if mean.is_clear and mean.mean > 0 else unclear).append((f'{epsilon:g}', mean.margin))
    sentences.append(f'ε = {epsilon:g}: {"; ".join(parts)}.')
  if any(margin is None for _, margin in unclear):
    sentences.insert(0, 'Some ε have one seed so far, which proves no order.')
  elif clear and not unclear:
    sentences.insert(
      0, 'Correlated noise is better than independent noise at every ε, by more than seeds explain.'
    )
  elif unclear:
    left = list(dict.fromkeys(epsilon for epsilon, _ in unclear))
    proven = dict.fromkeys(epsilon for epsilon, _ in clear if epsilon not in left)
    better = f'{metric.better} independent noise by more than seeds explain'
    done = f'{better} at ε = {", ".join(proven)}, but not' if proven else f'not {better}'
    sentences.insert(
      0,
      f'The mean of the mechanisms with correlated noise is {done} at'
      f' ε = {", ".join(left)}: the interval of these seeds holds 0 or lies'
      f' {metric.worse} it.',
    )
  return sentences


def _beside_independent(
  rows: Sequence[results.Row],
) -> Iterator[tuple[float, results.Row, list[results.Row]]]:
  """Yields ε, a setting with independent noise, and those with correlated noise."""
  for epsilon, level in results.levels(rows).items():
    for row in level:
      if row.family == _INDEPENDENT:
        flags = row.setting.flags
        others = [r for r in level if r.family != _INDEPENDENT and r.setting.flags == flags]
        if others:
          yield epsilon, row, others


def _beside(independent: results.Row, others: Sequence[results.Row]) -> list[tuple[str, list[str]]]:
  """Returns the mechanisms better than, level with and worse than independent noise, in words."""
  groups: dict[str, list[str]] = {}
  for row in others:
    difference = intervals.paired(row.gains, independent.gains, row.looks)
    if difference is None:
      continue
    side = row.metric.better if difference.mean > 0 else row.metric.worse
    if difference.margin is None:
      words = f'{side} it in the one seed that both have'
    elif difference.is_clear:
      words = f'{side} it by more than seeds explain'
    else:
      words = 'not told apart from it'
    groups.setdefault(words, []).append(row.label)
  return list(groups.items())


def baseline(rows: Sequence[results.Row]) -> list[str]:
  """Returns a sentence on the best constant prediction; none where it is not known."""
  height = results.baseline(rows)
  if height is None:
    return []
  parts = []
  for epsilon, level in results.levels(rows).items():
    below = [row.label for row in level if row.mean <= height]
    if below:
      whole = len(level) > 1 and len(below) == len(level)
      parts.append(f'{"every mechanism" if whole else ", ".join(below)} at ε = {epsilon:g}')
  named = f'Not above it: {"; ".join(parts)}.' if parts else 'All settings are above it.'
  return [f'The best constant prediction has {rows[0].metric.shown(height)}. {named}']


def untuned(rows: Sequence[results.Row]) -> list[str]:
  """Returns what shows that the runs without noise are not trained well; nothing if none does."""
  silent = results.without_noise(rows)
  if silent is None:
    return []
  remedy = 'Train for more rounds, or try other rates, before you read an order from this page.'
  height = results.baseline(rows)
  if height is not None and silent.mean <= height:
    return [f'Even without noise the model is not above the best constant prediction. {remedy}']
  metric = silent.metric
  gains = [(row, intervals.paired(row.gains, silent.gains)) for row in rows if row is not silent]
  better = [row for row, gain in gains if gain is not None and _is_help(metric, gain)]
  if not better:
    return []
  named = ', '.join(f'{row.label} at ε = {row.epsilon:g}' for row in better)
  than = 'more' if metric.lower_is_better else 'less'
  return [
    f'The runs without noise reach {metric.shown(silent.mean)}, {than} than {named}. Noise makes no'
    f' model better, so the runs without noise lack rounds or a good learning rate. {remedy}'
  ]


def _is_help(metric: metric_lib.Metric, gain: intervals.Difference) -> bool:
  """Returns whether noise looks better than none by more than it may."""
  return gain.mean > _NOISE_HELPS if metric.is_accuracy else gain.mean > 0 and gain.is_clear


def predictions(rows: Sequence[results.Row]) -> list[str]:
  """Returns sentences on how well each loss predicts the order of mechanisms."""
  metric = rows[0].metric
  negated = 'negated ' * metric.lower_is_better
  by_measure = {name: prediction.correlation(rows, name) for name in prediction.MEASURES}
  if all(ranked.pooled is None for ranked in by_measure.values()):
    return ['There are too few settings, or mechanisms, for a rank correlation.']
  sentences = [
    'The noise in the model is known before any training: loss × effective noise multiplier ×'
    f' clip norm / report goal. A rank correlation of −1 with {negated}test {metric.name} means'
    ' that it puts all mechanisms in the right order. Intervals are of a bootstrap over settings,'
    ' p-values of permutations, both with a fixed seed.'
  ]
  for name, ranked in by_measure.items():
    sentences.append(f'Noise {prediction.MEASURES[name]}: {_correlation(ranked)}.')
  sentences.extend(_best_measure(rows, by_measure))
  for name in prediction.MEASURES:
    sentences.append(f'Without training, noise {prediction.MEASURES[name]} {_selected(rows, name)}')
  return sentences


def _correlation(ranked: prediction.Correlation) -> str:
  parts = [
    f'Spearman’s ρ is {prediction.text(ranked.pooled)} over {ranked.settings} settings'
    + ('' if ranked.pooled is None else f', p {_p_value(ranked.pooled)}')
  ]
  if ranked.within is not None:
    by_epsilon = ', '.join(
      f'{_signed(f"{v:.2f}")} at ε = {e:g}' for e, v in ranked.by_epsilon.items()
    )
    parts.append(
      'within one ε, where the noise multiplier plays no part, the mean is'
      f' {prediction.text(ranked.within)}, p {_p_value(ranked.within)} ({by_epsilon})'
    )
  return '; '.join(parts)


def _best_measure(
  rows: Sequence[results.Row], by_measure: dict[str, prediction.Correlation]
) -> list[str]:
  """Returns which measure predicts the order within an ε best, if any does."""
  within = {name: ranked.within.value for name, ranked in by_measure.items() if ranked.within}
  if len(within) < 2:
    return []
  best = min(within, key=within.get)  # type: ignore[arg-type]
  apart: list[str] = []
  joint: list[str] = []
  for name in within:
    if name == best:
      continue
    gained = prediction.advantage(rows, best, name)
    if gained is None:
      continue
    value, low, high = gained
    ends = ' to '.join(_signed(f'{end:.2f}') for end in (low, high))
    words = f'{prediction.MEASURES[name]} (by {value:.2f}, 95 %: {ends})'
    (apart if low > 0 else joint).append(words)
  parts = [f'Within an ε the noise {prediction.MEASURES[best]} has the correlation closest to −1']
  if apart:
    parts.append(f'clearly closer than that {" and ".join(apart)}')
  if joint:
    parts.append(f'but these settings do not tell it apart from that {" and ".join(joint)}')
  return [', '.join(parts) + '.']


def _selected(rows: Sequence[results.Row], measure: str) -> str:
  """Returns what the least noise selects, and when that can be relied on."""
  parts, metric = [], rows[0].metric
  for choice in prediction.choices(rows, measure):
    outcome = 'the best'
    if choice.difference is not None:
      outcome = (
        metric.difference(choice.difference)
        + f'{metric.points} {metric.worse} the best: {choice.difference.verdict}'
      )
    parts.append(f'{choice.label} at ε = {choice.epsilon:g} ({outcome})')
  pairs = prediction.pairs(rows, measure)
  text = f'selects {", ".join(parts)}.' if parts else 'selects nothing: no ε has two mechanisms.'
  if not pairs.apart:
    return f'{text} Seeds tell none of {pairs.total} pairs of mechanisms of one ε apart.'
  better = f'{"a lower" if metric.lower_is_better else "a higher"} {metric.name}'
  better = 'more accuracy' if metric.is_accuracy else better
  text += (
    f' Of {pairs.total} pairs of mechanisms of one ε seeds tell {pairs.apart} apart; in'
    f' {pairs.right} of these the one with less noise has {better}.'
  )
  if pairs.right == pairs.apart:
    return f'{text} None is the other way round, so here a mechanism can be chosen by this loss.'
  if not pairs.beyond:
    return (
      f'{text} The pair with the largest difference in noise is the other way round, so here no'
      ' mechanism can be chosen by this loss.'
    )
  return (
    f'{text} Where the noise differs by a factor above {pairs.ratio:.3g} all {pairs.beyond} are in'
    ' the right order, and a mechanism can be chosen by this loss; for smaller differences train'
    ' both.'
  )


def _mean_by_seed(rows: Sequence[results.Row]) -> dict[int, float]:
  """Returns the mean gain over mechanisms of each seed that all of them have."""
  seeds = set.intersection(*(set(row.tests) for row in rows))
  return {seed: statistics.fmean(row.gains[seed] for row in rows) for seed in seeds}


def _signed(number: str) -> str:
  return number.replace('-', '−', 1) if number.startswith('-') else f'+{number}'


def _p_value(estimate: prediction.Estimate) -> str:
  return '< 0.001' if estimate.p_value < 0.001 else f'= {estimate.p_value:.3f}'
