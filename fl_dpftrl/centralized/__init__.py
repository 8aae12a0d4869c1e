"""Sampled batches of centralized training: schemes, accounting and checks of logs."""
