"""Rounds with correlated noise in any training loop, in NumPy."""

from fl_dpftrl.run.noise_rows import NoiseRows as NoiseRows
from fl_dpftrl.run.private_aggregator import PrivateAggregator as PrivateAggregator
