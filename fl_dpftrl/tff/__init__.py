"""TensorFlow Federated: aggregators, training, and processes as an audit runs them."""
