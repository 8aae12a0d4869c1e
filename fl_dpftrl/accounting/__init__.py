"""Conversions between noise multipliers and (ε, δ) or zCDP guarantees."""

from fl_dpftrl.accounting.guarantee import Guarantee as Guarantee
