"""Replay: the guarantees that participation logs prove for a mechanism."""
