"""Checks, files, text, tables, styles, signals and compiled loops, which know no mechanism."""

# Modules of this room that are public.
__all__ = ['style']
