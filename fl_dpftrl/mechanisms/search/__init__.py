"""Optimisers for each family of strategies."""
