"""Reference streams in plain NumPy, against which other streams are tested."""

from fl_dpftrl.noise.reference import banded as _banded
from fl_dpftrl.noise.reference import blt as _blt
from fl_dpftrl.noise.reference import dense as _dense
from fl_dpftrl.noise.reference import identity as _identity
from fl_dpftrl.noise.reference import low_rank as _low_rank
from fl_dpftrl.noise.reference import stamped as _stamped
from fl_dpftrl.noise.reference import toeplitz as _toeplitz
from fl_dpftrl.noise.reference import tree as _tree
from fl_dpftrl.noise.reference import tree_full as _tree_full
from fl_dpftrl.noise.reference.dispatch import reference_stream
