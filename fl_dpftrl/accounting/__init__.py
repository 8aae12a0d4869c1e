"""Conversions between noise multipliers and (ε, δ) or zCDP guarantees."""

from fl_dpftrl.accounting.guarantee import Guarantee as Guarantee
from fl_dpftrl.accounting.guarantee import account as account
from fl_dpftrl.accounting.guarantee import calibrate as calibrate
