"""Messages of one line, and figures rounded to the safe side."""
