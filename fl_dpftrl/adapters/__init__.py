"""Correlated noise in training loops of other libraries: a module a library, each an extra.

`fl_dpftrl.adapters.flower`, `.nvflare`, `.opacus`, `.optax`, `.peft` and `.pfl` import their
library; `.sites` and this module none.
"""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def peer(library: str, extra: str) -> Iterator[None]:
  """Turns a failed import of a library into one line that names the extra."""
  try:
    yield
  except ImportError as error:
    raise ImportError(
      f"fl_dpftrl.adapters.{extra} needs {library}: pip install 'fl_dpftrl[{extra}]' ({error})"
    ) from None
