"""Mechanisms C and N: families, sensitivities, searches, strategy files."""
