import os

# Must be set before TensorFlow is imported: its start is loud.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # Several clients at a time.

import pytest

from fl_dpftrl.logs import reader

try:
  import hypothesis
except ImportError:  # A few tests do without it.
  pass
else:
  # The same examples each time. `--hypothesis-profile=thorough` tries others.
  hypothesis.settings.register_profile(
    'quick', deadline=None, max_examples=20, derandomize=True, database=None
  )
  hypothesis.settings.register_profile('thorough', deadline=None, max_examples=300)
  hypothesis.settings.load_profile('quick')


@pytest.fixture(autouse=True, scope='session')
def one_reader():
  """Logs that one process opens are read by one reader, to save its start."""
  shared = reader.Reader()
  patch = pytest.MonkeyPatch()
  patch.setattr(reader, 'Reader', lambda: shared)
  yield
  patch.undo()
