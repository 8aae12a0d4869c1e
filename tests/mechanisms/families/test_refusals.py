"""Parameters that make no strategy are refused, and named."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl

NAN, INF = float('nan'), float('inf')
NEAR, SIDE = np.ones((3, 1)), np.ones((3, 2))
TREE = dpftrl.TreeOnline()
# Family → arguments, and words of the refusal.
REFUSED = {
  dpftrl.Banded: [((np.ones(3),), 'shape'), ((np.ones((0, 0)),), 'shape'),
    ((np.tri(2, 3),), 'bands'), (([[1.0], [NAN]],), 'finite'), (([[1.0], [INF]],), 'finite'),
    (([[1.0], [0.0]],), 'positive'), (([[1.0], [-2.0]],), 'positive'),
    (([[1.0, 0.5], [1.0, 0.5]],), 't < j')],
  dpftrl.BandedInverse: [(([],), r'shape \(0,\)'), (([[1.0]],), r'shape \(1, 1\)'),
    (([1.0, NAN],), 'finite'), (([0.0, 1.0],), 'positive one, got 0.0')],
  dpftrl.BandedToeplitz: [
    *(((wrong,), 'coefficients') for wrong in ([], [[1.0]], 1.0, [0.0, 1.0], [-1.0], [1.0, NAN])),
    (([INF],), 'coefficients'),
    *((([1.0], rounds), 'normalized_rounds') for rounds in (0, -1, 2.5, True, 'many')),
  ],
  dpftrl.BLT: [(([], []), 'buffer_decay'), (([0.5], []), 'same length'),
    (([0.5], [0.1, 0.1]), 'same length'),
    *((([decay], [0.1]), 'buffer_decay') for decay in (0.0, 1.0, -0.5, NAN)),
    *((([0.5], [scale]), 'output_scale') for scale in (-0.1, 1.1, INF))],
  dpftrl.Dense: [((np.ones(3),), 'shape'), ((np.ones((2, 3)),), 'shape'),
    ((np.zeros((0, 0)),), 'shape'), (([[NAN]],), 'finite'),
    (([[1.0, 0.0], [0.0, 0.0]],), 'positive diagonal'),
    (([[1.0, 0.1], [0.0, 1.0]],), '0 above the diagonal')],
  dpftrl.LambdaCGD: [
    ((decay,), 'decay must be a number') for decay in (-0.1, 1.01, NAN, None, 'x')
  ],
  dpftrl.LowRank: [((np.ones(3), SIDE, SIDE), 'near must have shape'),
    ((NEAR, np.ones((3, 0)), SIDE), 'row_factors must have shape'),
    ((NEAR, SIDE, INF * SIDE), 'column_factors must be finite'),
    ((np.ones((3, 4)), SIDE, SIDE), 'near must have at most 3 bands, got 4'),
    ((NEAR, np.ones((4, 2)), SIDE), 'row_factors and column_factors must have 3 rows'),
    ((NEAR, SIDE, np.ones((3, 1))), 'row_factors and column_factors must have 3 rows'),
    ((np.zeros((3, 1)), SIDE, SIDE), 'positive diagonal'),
    ((np.ones((3, 2)), SIDE, SIDE), r'near \[t, j\] must be 0 where t < j')],
  dpftrl.Stamped: [
    *(((TREE, wrong), 'block_rounds must be') for wrong in (0, -1, 2.0, None, True, '3')),
    ((dpftrl.Banded(np.ones((4, 1))), 5), 'block_rounds=5 is beyond the 4 rounds'),
    *(((wrong, 3), 'strategy must be a Strategy') for wrong in (dpftrl.TreeOnline, 'blt', None)),
  ],
  dpftrl.TreeFull: [((wrong,), 'num_rounds must be') for wrong in (0, -1, 2.5, True, 'x')],
}  # fmt: skip


@pytest.mark.parametrize(
  'family, arguments, words', [(family, *row) for family, rows in REFUSED.items() for row in rows]
)
def test_parameters_that_make_no_strategy_are_refused(family, arguments, words):
  with pytest.raises(ValueError, match=words):
    family(*arguments)
