"""Streams of rows of N·Z: the noise that correlated mechanisms add."""

# Modules of this room that are public.
__all__ = ['integer_rows', 'normals']
