"""Mechanisms C and N: families, sensitivities, searches, strategy files."""

# Modules of this room that are public.
__all__ = ['lattice', 'linear_noise', 'sensitivities', 'workload_error']
