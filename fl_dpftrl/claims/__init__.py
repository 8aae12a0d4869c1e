"""Claims: all that a run promises before round 0, and what is in its releases."""
