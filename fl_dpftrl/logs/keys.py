"""Keys of a log's metadata."""

LOG_VERSION = 1
VERSION_KEY = 'fl_dpftrl.log_version'
NUM_ROUNDS_KEY = 'num_rounds'
# Rounds whose results may have been used; needed to resume the run.
RELEASED_KEY = 'fl_dpftrl.rounds_released'
# Chained digest of the last round, as the writer computed it round by round.
CHAIN_KEY = 'fl_dpftrl.rounds_sha256'
