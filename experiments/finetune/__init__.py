"""Fine-tuning of a language model from people's text under user-level differential privacy."""
