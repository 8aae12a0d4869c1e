"""The participation log: format, readers and writers."""

# Modules of this room that are public.
__all__ = ['claim']
