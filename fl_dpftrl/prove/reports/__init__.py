"""HTML pages and figures of statements, plans and populations."""
