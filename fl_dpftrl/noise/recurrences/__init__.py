"""The step of each family's stream in TensorFlow, from Z to a row of N·Z.

A family without a recurrence of its own draws the rows of Z again.
"""

from fl_dpftrl.noise.recurrences import banded as _banded
from fl_dpftrl.noise.recurrences import blt as _blt
from fl_dpftrl.noise.recurrences import identity as _identity
from fl_dpftrl.noise.recurrences import low_rank as _low_rank
from fl_dpftrl.noise.recurrences import stamped as _stamped
from fl_dpftrl.noise.recurrences import toeplitz as _toeplitz
from fl_dpftrl.noise.recurrences import tree as _tree
from fl_dpftrl.noise.recurrences import tree_full as _tree_full
from fl_dpftrl.noise.recurrences.dispatch import NoiseSource, Recurrence, recurrence
