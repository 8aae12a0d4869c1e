"""From a sensitivity and a noise multiplier to (ε, δ) and ρ, and back."""

from fl_dpftrl.accounting.calibration import calibrate as calibrate
from fl_dpftrl.accounting.gaussian import account as account
from fl_dpftrl.accounting.gaussian import Guarantee as Guarantee
