"""How the best strategy of a family is found."""
