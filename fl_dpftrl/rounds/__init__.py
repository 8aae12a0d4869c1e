"""Rounds with correlated noise in any training loop, in NumPy."""

from fl_dpftrl.rounds.noise_rows import NoiseRows as NoiseRows
from fl_dpftrl.rounds.private_aggregator import PrivateAggregator as PrivateAggregator
