"""Studies: mechanisms compared by training anything, at equal ε."""

# Modules of this room that are public.
__all__ = ['cells', 'design']
