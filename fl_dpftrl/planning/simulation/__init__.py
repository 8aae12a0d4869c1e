"""Simulated populations: devices, timers, availability and cohorts."""

# Modules of this room that are public.
__all__ = ['partition']
