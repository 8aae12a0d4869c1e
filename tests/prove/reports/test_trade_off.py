"""The trade-off of errors: its curve, and its agreement with ε and δ."""

import math

import numpy as np
import pytest
from scipy import special

from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.prove.reports import report_figures


@pytest.mark.parametrize('mu', [0.1, 1.0, 4.0])
def test_epsilon_and_delta_are_a_line_that_touches_the_curve(mu):
  shares = special.ndtr(np.linspace(-12.0, 8.0, 4001))
  errors = np.array([report_figures.least_false_negatives(mu, share) for share in shares])
  for delta in (1e-3, 1e-6):
    line = 1.0 - delta - math.exp(gaussian.epsilon(1.0 / mu, delta)) * shares
    slack = errors - line
    assert slack.min() > -1e-9
    assert slack.min() < 0.02 * delta + 1e-12  # It touches the curve, but for rounding up.


def test_the_curve_is_symmetric_and_falls_with_mu():
  for share in (0.01, 0.3):
    other = report_figures.least_false_negatives(1.3, share)
    assert report_figures.least_false_negatives(1.3, other) == pytest.approx(share)
    assert report_figures.least_false_negatives(0.0, share) == pytest.approx(1.0 - share)
    assert report_figures.least_false_negatives(2.0, share) < other
