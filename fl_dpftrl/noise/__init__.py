"""Streams of rows of N·Z: the noise that correlated mechanisms add."""
