"""Bundles: a run's log, strategy, parameters and statement, which others can check."""
