"""Loops over words, coordinates and ids, compiled by Numba. They know no family and no claim."""
