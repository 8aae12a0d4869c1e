"""Keys of a log's metadata."""

LOG_VERSION = 2
VERSION_KEY = 'fl_dpftrl.log_version'
NUM_ROUNDS_KEY = 'num_rounds'
# Chained digest of the last round; see `ledger`.
CHAIN_KEY = 'fl_dpftrl.rounds_sha256'
# Random identity of the run; see `ledger`.
RUN_KEY = 'fl_dpftrl.run'
# Citations of the table of units, each with the first round that has it, as JSON.
UNITS_KEY = 'fl_dpftrl.units'
# Digest of all other metadata.
METADATA_KEY = 'fl_dpftrl.metadata_sha256'
OWN_KEYS = (VERSION_KEY, NUM_ROUNDS_KEY, CHAIN_KEY, RUN_KEY, UNITS_KEY, METADATA_KEY)
"""Keys that a log sets itself."""

# JSON of the claim of the run, and SHA-256 of that text.
CLAIM_KEY = 'fl_dpftrl.claim'
CLAIM_DIGEST_KEY = 'fl_dpftrl.claim_sha256'
