"""accuracy.png: what the model learnt, and what it cost in privacy."""

import os
import pathlib

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt  # pylint: disable=g-import-not-at-top

from fl_dpftrl import files

_BLUE, _ORANGE, _GREY, _GREEN = '#1f6fb4', '#c8590b', '#6b6b6b', '#2e7d32'


def accuracy_plot(
    path: str | os.PathLike[str],
    *,
    title: str,
    accuracy: dict[int, float],
    epsilon: dict[int, float],
    baseline: float,
    test_accuracy: float,
    delta: float,
    without_noise: float | None = None,
) -> None:
  """Draws accuracy, and ε where there is one, against the rounds.

  Args:
    path: of the PNG.
    title: one line.
    accuracy: round → validation accuracy after it.
    epsilon: round → ε of the log up to it; empty without a guarantee.
    baseline: test accuracy of the best constant prediction.
    test_accuracy: of the final model.
    delta: at which ε is stated.
    without_noise: test accuracy of the same run without noise, where known.
  """
  figure, axes = plt.subplots(
      2 if epsilon else 1,
      1,
      sharex=True,
      figsize=(8, 6.4 if epsilon else 4.4),
      height_ratios=(3, 2) if epsilon else None,
      squeeze=False,
      layout='constrained',
  )
  top = axes[0, 0]
  rounds = [r + 1 for r in accuracy]
  top.plot(
      rounds,
      [100 * a for a in accuracy.values()],
      color=_BLUE,
      marker='o',
      markersize=3,
      label='validation accuracy',
  )
  top.axhline(
      100 * baseline,
      color=_GREY,
      linestyle='--',
      label=f'unigram baseline, test: {100 * baseline:.2f} %',
  )
  if without_noise is not None:
    top.axhline(
        100 * without_noise,
        color=_GREEN,
        linestyle=':',
        label=f'same run without noise, test: {100 * without_noise:.2f} %',
    )
  if rounds:
    top.plot(
        rounds[-1],
        100 * test_accuracy,
        color=_ORANGE,
        marker='D',
        linestyle='none',
        label=f'final model, test: {100 * test_accuracy:.2f} %',
    )
  top.set_ylabel('next-word accuracy (%)')
  top.set_ylim(bottom=0)
  top.legend(loc='lower right', framealpha=0.95, edgecolor='none')
  top.set_title(title, loc='left')
  if epsilon:
    bottom = axes[1, 0]
    bottom.plot(
        [r + 1 for r in epsilon],
        list(epsilon.values()),
        color=_ORANGE,
        marker='o',
        markersize=3,
    )
    bottom.set_ylabel(f'ε so far at δ = {delta:g}')
    bottom.set_ylim(0, 1.1 * max(epsilon.values()))
  for axis in axes[:, 0]:
    axis.grid(alpha=0.3)
    axis.spines[['top', 'right']].set_visible(False)
  axes[-1, 0].set_xlabel('rounds')
  axes[-1, 0].set_xlim(left=0)
  temporary = pathlib.Path(path).with_name(
      files.TEMPORARY_PREFIX + pathlib.Path(path).name
  )
  figure.savefig(temporary, dpi=150)
  plt.close(figure)
  os.replace(temporary, path)
