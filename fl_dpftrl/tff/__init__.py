"""TensorFlow Federated: aggregators, training, and processes as an audit runs them."""

# Modules of this room that are public.
__all__ = ['aggregators']
