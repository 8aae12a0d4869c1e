"""The one trainer: any learning process of TFF, with checkpoints, log, observers and reports."""

# Modules of this room that are public.
__all__ = ['guarded']
