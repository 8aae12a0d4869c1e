"""Twins of random secrets, one of which a model was trained on: does it remember which?

Of each pair a fair coin says which is the text of a made-up person. After training, the twin whose
loss fell more is guessed to be the one. Twins are a replacement, so what guesses bound has 2μ.
Secrets of a name are in order: the one to train on, its twin, and those that nobody writes.
"""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy
from matplotlib.figure import Figure

from fl_dpftrl.prove.auditing import guesses
from fl_dpftrl.support import style
from fl_dpftrl.support.files import durable

# Secrets that nobody wrote, among which others are ranked: about so many, and the most of a name.
_NEVER, _MOST = 1000, 48


def num_secrets(number: int) -> int:
  """Returns the number of secrets that each of a number of names has."""
  return 2 + min(_MOST, -(-_NEVER // number))


def tossed(secrets: np.ndarray, generator: np.random.Generator) -> np.ndarray:
  """Returns secrets [names, secrets, …] of which coins have swapped the first two of a name."""
  coins = generator.integers(0, 2, len(secrets)) == 1
  secrets = secrets.copy()
  secrets[coins, :2] = secrets[coins, 1::-1]
  return secrets


def told_apart(falls: np.ndarray) -> dict[str, Any]:
  """Returns how well falls of losses [names, secrets] tell twins apart, with a 95 % interval."""
  number, (trained, other), never = len(falls), falls[:, :2].T, falls[:, 2:].ravel()
  correct = int((trained > other).sum())
  interval = scipy.stats.binomtest(correct, number).proportion_ci()
  ranks = 1 + (~(never[None] < trained[:, None])).sum(axis=1)  # No number ranks last.
  return {
    'num_secrets': number,
    'accuracy': correct / number,
    'interval': [interval.low, interval.high],
    'lower_mu': guesses.lower_bound(correct, number, number, 0.05) / 2.0,
    'exposure': float(np.median(math.log2(never.size + 1) - np.log2(ranks))),
  }


def words(result: Mapping[str, Any]) -> str:
  """Returns the result of a run in words."""
  low, high = result['interval']
  return (
    f'{100 * result["accuracy"]:.0f} % of {result["num_secrets"]} twins told apart'
    f' (95 %: {100 * low:.0f} to {100 * high:.0f} %), exposure {result["exposure"]:.1f} bits,'
    f' μ at least {result["lower_mu"]:.2f}'
  )


def draw(path: pathlib.Path, results: Mapping[str, Mapping[str, Any]]) -> None:
  """Draws the share of twins that each run tells apart, with its interval."""
  figure = Figure(figsize=(4.8, 3.2), facecolor='white', layout='constrained')
  style.dress(axes := figure.subplots())
  shares = np.array([[r['accuracy'], *r['interval']] for r in results.values()])
  errors = np.abs(shares[:, 1:] - shares[:, :1]).T
  axes.errorbar(range(len(results)), shares[:, 0], errors, fmt='o', color=style.INK, capsize=4)
  axes.axhline(0.5, color=style.INK, linewidth=1, linestyle='--')
  axes.set(ylabel='twins told apart', ylim=(0.0, 1.0), xlim=(-0.5, len(results) - 0.5))
  axes.set_xticks(range(len(results)), list(results))
  durable.write_durably(path, style.image(figure, path.suffix[1:]))
