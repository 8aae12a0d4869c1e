"""Studies on the language with topics, whose rounds are only NumPy."""
