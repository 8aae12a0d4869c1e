"""Aggregators for TensorFlow Federated that add correlated noise."""

from fl_dpftrl.tff.aggregators.factories import CorrelatedNoiseFactory as CorrelatedNoiseFactory

# Names and modules of this room that are public.
__all__ = ['CorrelatedNoiseFactory', 'dp_query']
