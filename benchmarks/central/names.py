"""Cases, sides and settings of the benchmark of central training, without JAX."""

CASES = ('text', 'images')
BANDS = (1, 16)
SETTINGS = {'batch': 256, 'delta': 1e-5, 'epsilon': 4.0, 'utility_rounds': 400, 'seeds': 5}
IN_MEMORY = '-memory'  # Ends the name of a side whose files are on a file system in memory.
TIMED = {
  'aggregator': '`PrivateAggregator`',
  'aggregator-memory': '`PrivateAggregator`, files in memory',
  'rows': '`NoiseRows`',
  'rows-memory': '`NoiseRows`, files in memory',
  'peer': 'jax-privacy',
}
TRAINED = ('aggregator', 'peer')
