"""Rounds of learning processes: the loop, its checkpoints, and guarded processes."""

# Modules of this room that are public.
__all__ = ['guarded']
