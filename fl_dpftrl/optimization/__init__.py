"""Optimisers for each family of strategies."""

# Modules of this room that are public.
__all__ = ['low_rank', 'streaming']
