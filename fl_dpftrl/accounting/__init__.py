"""Conversions between noise multipliers and (ε, δ) or zCDP guarantees."""

from fl_dpftrl.accounting.calibration import calibrate as calibrate
from fl_dpftrl.accounting.gaussian import Guarantee as Guarantee
from fl_dpftrl.accounting.gaussian import account as account
