"""Mechanisms, one a file: C, N, sensitivity, error and noise."""
