"""The packages; matrices/ and checker/ lie beside fl_dpftrl/; all else is in pyproject.toml."""

import setuptools

setuptools.setup(
  packages=[
    *setuptools.find_namespace_packages(include=['fl_dpftrl', 'fl_dpftrl.*']),
    'tff_inprocess',
    'fl_dpftrl.checker',
    'fl_dpftrl.matrices',
  ],
  package_dir={'fl_dpftrl.checker': 'checker', 'fl_dpftrl.matrices': 'matrices'},
)
