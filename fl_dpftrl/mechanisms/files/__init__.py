"""Strategy files: their documents, digests, and the included ones."""

# Modules of this room that are public.
__all__ = ['files']
