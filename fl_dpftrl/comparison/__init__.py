"""Comparison of mechanisms: candidates, their figures, and plots."""
