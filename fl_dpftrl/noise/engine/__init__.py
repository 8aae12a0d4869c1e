"""Rows of N·Z made ahead of time in NumPy, outside TensorFlow."""

from fl_dpftrl.noise.engine.cost import Cost as Cost
from fl_dpftrl.noise.engine.cost import predict as predict
from fl_dpftrl.noise.engine.maker import RowMaker as RowMaker
