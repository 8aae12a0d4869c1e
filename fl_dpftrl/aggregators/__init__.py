"""Aggregators for TensorFlow Federated that add correlated noise."""
