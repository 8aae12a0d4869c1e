"""Simulated populations: devices, timers, availability and cohorts."""
