"""Rules of participation, a file each."""

from fl_dpftrl.participation.rules import loss_budgets as loss_budgets
from fl_dpftrl.participation.rules import min_sep as min_sep
from fl_dpftrl.participation.rules import per_units as per_units
from fl_dpftrl.participation.rules import sampling as sampling

# Modules of this room that are public.
__all__ = ['sampling']
