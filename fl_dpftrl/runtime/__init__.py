"""Dependence of a TFF process on its clients, followed through its graphs."""
