"""Rounds with correlated noise in any training loop, in NumPy."""
