"""Mechanisms, one a file: C, N, sensitivity, error and noise."""

# Modules of this room that are public.
__all__ = ['lattice', 'linear_noise']
