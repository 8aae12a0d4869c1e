"""Rules of participation, a family of them in each file."""

from fl_dpftrl.participation.rules import loss_budgets as loss_budgets
from fl_dpftrl.participation.rules import per_units as per_units
from fl_dpftrl.participation.rules import sampling as sampling
from fl_dpftrl.participation.rules import separations as separations

# Modules of this room that are public.
__all__ = ['sampling']
