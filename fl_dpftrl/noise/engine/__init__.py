"""Rows of N·Z made ahead of time in NumPy, outside TensorFlow, and served.

A new family registers its own recurrence here. Without one, its rows are sums
over rows of Z that are drawn again.
"""

from fl_dpftrl.noise.engine import banded as _banded
from fl_dpftrl.noise.engine import blt as _blt
from fl_dpftrl.noise.engine import identity as _identity
from fl_dpftrl.noise.engine import tree as _tree
from fl_dpftrl.noise.engine.cost import Cost as Cost
from fl_dpftrl.noise.engine.cost import predict as predict
from fl_dpftrl.noise.engine.dispatch import is_buffered as is_buffered
from fl_dpftrl.noise.engine.maker import RowMaker as RowMaker
from fl_dpftrl.noise.engine.server import RowServer as RowServer
