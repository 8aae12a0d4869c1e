"""Peer's side of the benchmark, by jax_privacy's public interface.

    peer.py optimize CASE.json FOUND.npz   finds a strategy, as its users would
    peer.py report CASE.json FOUND.npz     prints the loss as the peer reports it

This is a script, not a module, because it runs where only jax_privacy is
installed. Options that a case does not name keep the library's defaults.
"""

import json
import math
import pathlib
import sys

import numpy as np


class BLT:
  def optimize(self, case):
    from jax_privacy.matrix_factorization import buffered_toeplitz

    sizes = {}
    if case['num_buffers']:
      sizes = dict.fromkeys(('min_buffers', 'max_buffers'), case['num_buffers'])
    blt = buffered_toeplitz.optimize(
      n=case['num_rounds'],
      min_sep=case['min_sep'],
      max_participations=case['max_participations'],
      error=_error(case),
      **sizes,
    )
    return {'buf_decay': blt.buf_decay, 'output_scale': blt.output_scale}

  def squared_loss(self, case, found):
    from jax_privacy.matrix_factorization import buffered_toeplitz

    loss = buffered_toeplitz.LossFn.build_min_sep(
      n=case['num_rounds'],
      error=_error(case),
      min_sep=case['min_sep'],
      max_participations=case['max_participations'],
    )
    return loss.loss(buffered_toeplitz.BufferedToeplitz.build(**found))


class BandedToeplitz:
  def optimize(self, case):
    from jax_privacy.matrix_factorization import toeplitz

    return {'coefs': toeplitz.optimize_banded_toeplitz(case['num_rounds'], case['num_bands'])}

  def squared_loss(self, case, found):
    from jax_privacy.matrix_factorization import toeplitz

    once = toeplitz.loss(found['coefs'], case['num_rounds'])
    return case['max_participations'] * once


class Banded:
  def optimize(self, case):
    from jax_privacy.matrix_factorization import banded

    strategy = banded.optimize(case['num_rounds'], bands=case['num_bands'])
    return {'params': strategy.params}

  def squared_loss(self, case, found):
    from jax_privacy.matrix_factorization import banded

    strategy = banded.ColumnNormalizedBanded(params=found['params'])
    errors = banded.per_query_error(strategy)
    return case['max_participations'] * errors.mean()


class Dense:
  def optimize(self, case):
    from jax_privacy.matrix_factorization import dense

    return {'matrix': dense.optimize(case['num_rounds'])}

  def squared_loss(self, case, found):
    from jax_privacy.matrix_factorization import dense, sensitivity

    errors = dense.per_query_error(strategy_matrix=found['matrix'])
    norm = sensitivity.single_participation_sensitivity(found['matrix'])
    return errors.mean() * norm**2


FAMILIES = {'blt': BLT(), 'banded_toeplitz': BandedToeplitz(), 'banded': Banded(), 'dense': Dense()}


def _error(case):
  return {'max': 'max', 'rms': 'mean'}[case['objective']]


def report(case, found):
  """Returns the root of the squared loss, in double precision."""
  import jax

  jax.config.update('jax_enable_x64', True)
  arrays = {k: jax.numpy.asarray(v) for k, v in found.items()}
  squared = FAMILIES[case['mechanism']].squared_loss(case, arrays)
  return math.sqrt(float(squared))


def main():
  what, case_file, found_file = sys.argv[1:]
  case = json.loads(pathlib.Path(case_file).read_text())
  if what == 'optimize':
    found = FAMILIES[case['mechanism']].optimize(case)
    np.savez(found_file, **{k: np.asarray(v) for k, v in found.items()})
  else:
    with np.load(found_file) as found:
      print(json.dumps(report(case, dict(found))))


if __name__ == '__main__':
  main()
