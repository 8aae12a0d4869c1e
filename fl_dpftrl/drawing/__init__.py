"""Style, bars and pages of every figure."""
