"""Mechanisms side by side: who takes part, their figures, and plots of them."""
