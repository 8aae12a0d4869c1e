"""Admission to rounds while a run goes on: schema, budget, and rows of noise."""
