"""Next-word prediction with correlated noise: data, model, flags, training."""
