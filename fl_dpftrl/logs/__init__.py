"""The participation log: format, readers and writers."""
