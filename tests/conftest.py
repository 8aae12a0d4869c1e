import os

# Must be set before TensorFlow is imported: its start is loud.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # Several clients at a time.

import pytest

from fl_dpftrl.logs import reader


@pytest.fixture(autouse=True, scope='session')
def one_reader():
  """Logs that one process opens are read by one reader, to save its start."""
  shared = reader.Reader()
  patch = pytest.MonkeyPatch()
  patch.setattr(reader, 'Reader', lambda: shared)
  yield
  patch.undo()
