import os

# Must be set before TensorFlow is imported: its start is loud.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # Several clients at a time.
