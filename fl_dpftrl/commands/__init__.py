"""One file a command of the command line; no mathematics."""

# Modules of this room that are public.
__all__ = ['main']
