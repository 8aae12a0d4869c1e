"""Conversions between noise multipliers and (ε, δ) or zCDP guarantees."""

from fl_dpftrl.participation.accounting.guarantees import Guarantee as Guarantee
