"""Statements of every family that the checker knows, and their certificates."""

import functools
import importlib.util
import json
import pathlib
import tempfile

import numpy as np

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import banded, banded_inverse, lambda_cgd, stamped, tree_full
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.prove.replaying import certificates
from tests import made

PATH = pathlib.Path(__file__).parents[2] / 'checker' / 'prove.py'
_SPEC = importlib.util.spec_from_file_location('prove', PATH)
prove = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(prove)

M = dpftrl.MinSep
FALLING = dpftrl.BandedToeplitz(np.array([1.0, 0.5, 0.25, 0.125]))
_ROWS = np.tile([1.25, 0.5, 0.3], (24, 1)) * np.linspace(1.0, 1.5, 24)[:, None]
BANDED = banded.Banded(np.where(np.arange(24)[:, None] < np.arange(3), 0.0, _ROWS))
BISR = banded_inverse.BandedInverse(np.array([1.0, -0.5, -0.125]))
FAMILIES = {
  'identity': ('identity', M(100, 10, 5)),
  'blt': (made.BLT, M(60, 6, 5)),
  'blt-b400': ('blt-b400', M(2052, 342, 6)),
  'falling Toeplitz': (FALLING, M(40, 2, 5)),
  'Toeplitz of bands = b': (FALLING, M(40, 4, 5)),
  'Toeplitz of norm 1': (dpftrl.BandedToeplitz(np.array([1.0, 0.5, 0.7]), 40), M(40, 3, 5)),
  'banded of bands = b': (BANDED, M(24, 3, 4)),
  'tree online': ('tree_online', M(2052, 342, 6)),
  'tree full': (tree_full.TreeFull(200), M(200, 20, 9)),
  'lambda cgd': (lambda_cgd.LambdaCGD(0.9), M(80, 8, 4)),
  'banded inverse': (BISR, M(90, 9, 8)),
  'stamped blt': (stamped.Stamped(made.BLT, 25), M(60, 6, 5)),
  'stamped tree': (stamped.Stamped(dpftrl.load_strategy('tree_online'), 16), M(90, 9, 8)),
  'stamped banded': (stamped.Stamped(BANDED, 10), M(60, 6, 5)),
  'stamped identity': (stamped.Stamped(dpftrl.load_strategy('identity'), 7), M(60, 6, 5)),
  'k b above n': (made.BLT, M(13, 6, 50)),
  'n below a pattern': (FALLING, M(3, 2, 5)),
  'blt without an end': (made.BLT, M(None, 6, 5)),
  'identity without an end': ('identity', M(None, 6, 5)),
  'Toeplitz without an end': (FALLING, M(None, 2, 5)),
  'lambda without an end': (lambda_cgd.LambdaCGD(0.9), M(None, 6, 5)),
  'stamped without an end': (stamped.Stamped(made.BLT, 25), M(None, 6, 5)),
  'loss budget': (made.BLT, dpftrl.LossBudget(squared=7.5)),
}


def claim(strategy, participation, noise=4.0, coordinates=None):
  covered = arithmetics.Arithmetic.covered
  arithmetic = arithmetics.Arithmetic() if coordinates is None else covered(coordinates)
  return dpftrl.Claim(
    strategy=strategy, noise_multiplier=noise, participation=participation, arithmetic=arithmetic
  )


def statement(*claims, **terms):
  """Returns the statement of runs of two rounds, in which one device took part each."""
  with tempfile.TemporaryDirectory() as folder:
    runs = []
    for place, each in enumerate(claims):
      path = made.ledger(pathlib.Path(folder, f'{place}.parquet'), [['a'], ['b']], each)
      runs.append(dpftrl.open_run(path, each.strategy))
    return dpftrl.replay(runs if len(runs) > 1 else runs[0], **{'delta': 1e-6} | terms)


def certificate(*claims, **terms):
  """Returns the certificate of a statement's proven figures."""
  return certificates.certified(statement(*claims, **terms)).document


@functools.cache
def _family(name):
  return json.dumps(certificate(claim(*FAMILIES[name])))


def family(name):
  """Returns a new copy of the certificate of a family."""
  return json.loads(_family(name))


def figure(document, name='declared'):
  return next(each for each in document['figures'] if each['name'] == name)


def answers(document):
  """Returns whether each figure is proved, by the checker in this process."""
  prove.steps[0] = 0
  figures = document['figures']
  return [all(ok for ok, _ in prove.attempt('', prove.proofs(document, f))) for f in figures]
