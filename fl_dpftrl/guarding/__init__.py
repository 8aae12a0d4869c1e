"""Admission to rounds while a run goes on: schema, budget, and rows of noise."""

# Modules of this room that are public.
__all__ = ['tff']
