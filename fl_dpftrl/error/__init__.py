"""Per-query, RMS and max error of a strategy, per unit of noise multiplier."""

from fl_dpftrl.error import banded as _banded
from fl_dpftrl.error import blt as _blt
from fl_dpftrl.error import identity as _identity
from fl_dpftrl.error import stamped as _stamped
from fl_dpftrl.error import toeplitz as _toeplitz
from fl_dpftrl.error import tree as _tree
from fl_dpftrl.error import tree_full as _tree_full
from fl_dpftrl.error.base import Error
from fl_dpftrl.error.dispatch import error
from fl_dpftrl.error.dispatch import per_query_error
