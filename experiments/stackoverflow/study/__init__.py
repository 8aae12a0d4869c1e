"""Studies: mechanisms compared by training, over noise levels, rates and seeds."""
