"""Participation logs: how they are written, and what they prove."""
