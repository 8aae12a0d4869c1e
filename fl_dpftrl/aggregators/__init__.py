"""Aggregators for TensorFlow Federated that add correlated noise."""

from fl_dpftrl.aggregators.factory import CorrelatedNoiseFactory as CorrelatedNoiseFactory
