"""Packaging: the light parts are the install, TFF is the locked environment.

`pip install .` takes what strategies, accounting, replay and simulation need, on
any current Python. Training needs TensorFlow Federated, whose own pins no longer
resolve: `make env` installs it from requirements.lock.
"""

import pathlib
import re

import setuptools

_VERSION = pathlib.Path(__file__).parent / 'fl_dpftrl' / 'version.py'
_TEST = [
  'hypothesis>=6.100',
  'jax>=0.4.30',
  'mpmath>=1.3',
  'pytest>=8',
  'pytest-xdist>=3.5',
  'sqlglot>=30',
  'z3-solver>=4.13',
]

setuptools.setup(
  name='fl_dpftrl',
  version=re.findall(r"'(.+)'", _VERSION.read_text())[0],
  description=(
    'Federated training with user-level differential privacy by correlated'
    ' noise, and the accounting of what a run really gave.'
  ),
  license='Apache-2.0',
  python_requires='>=3.11',
  classifiers=['Operating System :: POSIX :: Linux', 'Operating System :: MacOS'],
  packages=[
    *setuptools.find_namespace_packages(include=['fl_dpftrl', 'fl_dpftrl.*']),
    'tff_inprocess',
    'fl_dpftrl.matrices',
  ],
  package_dir={'fl_dpftrl.matrices': 'matrices'},
  package_data={
    'fl_dpftrl': ['__init__.pyi', 'py.typed'],
    'fl_dpftrl.prove.reports': ['templates/*'],
    'fl_dpftrl.matrices': ['*.json', '*.npz'],
  },
  install_requires=[
    'cryptography>=43',
    'dp-accounting>=0.4.3',
    'duckdb>=1.0',
    'jinja2>=3.1',
    'matplotlib>=3.8',
    'numba>=0.68',  # Its cache goes by what a source says, and not by when it was written.
    'numpy>=1.26',
    'pyarrow>=16',
    'scipy>=1.12',
    'threadpoolctl>=3.1',
    'tqdm>=4.66',
  ],
  extras_require={
    'test': _TEST,
    'dev': [*_TEST, 'import-linter>=2.15', 'mypy>=2.4', 'pre-commit>=4', 'ruff>=0.17.6'],
    'machines': ['ray>=2.60'],  # clients and noise on several machines
    # fl_dpftrl.run.observers, each with its library
    'mlflow': ['mlflow>=2.14'],
    'tensorboard': ['tensorboard>=2.16'],
    'wandb': ['wandb>=0.19.10'],
    'notebook': ['ipywidgets>=8', 'jupyterlab>=4'],  # progress bars, and where to run examples
    # fl_dpftrl.adapters, each with its library
    'flower': ['flwr>=1.41'],
    'nvflare': ['nvflare>=2.9'],
    'opacus': ['opacus>=1.5.4'],
    'optax': ['jax>=0.4.30', 'optax>=0.2.5'],
    'pfl': ['pfl>=0.6', 'torch>=2.2'],
  },
  entry_points={'console_scripts': ['fl-dpftrl = fl_dpftrl.commands.main:main']},
)
