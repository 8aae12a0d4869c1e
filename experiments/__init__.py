"""Experiments: whole training runs on public data."""
