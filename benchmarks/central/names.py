"""Cases, sides and settings of the benchmark of central training, without JAX."""

CASES = ('text', 'images')
BANDS = (1, 16)
SETTINGS = {'batch': 256, 'delta': 1e-5, 'epsilon': 4.0, 'utility_rounds': 400, 'seeds': 5}
SAVE_EVERY = 50
SIDES = {'aggregator': '`PrivateAggregator`', 'peer': 'jax-privacy'}
