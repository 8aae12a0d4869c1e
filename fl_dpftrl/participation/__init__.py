"""Participations: who may take part when, what that costs, and what a log shows of it."""

from fl_dpftrl.participation import rules as rules  # Registers the built-in ones.

# Modules of this room that are public.
__all__ = ['accountant']
