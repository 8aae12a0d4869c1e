"""Sampled batches of centralized training: schemes, accounting and checks of logs."""

# Modules of this room that are public.
__all__ = ['accountant', 'sampling']
