"""Checks, files, text, tables, styles, signals and compiled loops, which know no mechanism."""
