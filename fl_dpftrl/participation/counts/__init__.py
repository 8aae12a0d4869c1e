"""Schemas of participation, and counts of who took part."""
