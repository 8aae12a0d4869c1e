"""Runs pytest on the paths that are given, as Bazel's targets do."""

import sys

import pytest

if __name__ == '__main__':
  sys.exit(pytest.main(['-p', 'no:cacheprovider', *sys.argv[1:]]))
