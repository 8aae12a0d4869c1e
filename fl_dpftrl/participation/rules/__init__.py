"""Participations, a file each: who may take part when, what that costs, what a log shows of it."""

from fl_dpftrl.participation import sampling as sampling
from fl_dpftrl.participation.rules import loss_budgets as loss_budget
from fl_dpftrl.participation.rules import min_sep as min_sep  # Registers the built-in ones.
from fl_dpftrl.participation.rules import per_units as per_units

# Modules of this room that are public.
__all__ = ['accountant', 'sampling']
