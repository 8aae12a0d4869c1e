"""Statements of what claims and logs prove, their pages, and audits of mechanisms."""
