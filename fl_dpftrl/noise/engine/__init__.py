"""Rows of N·Z made ahead of time in NumPy, outside TensorFlow, and served."""

from fl_dpftrl.noise.engine.certificates import Certificates as Certificates
from fl_dpftrl.noise.engine.cost import Cost as Cost
from fl_dpftrl.noise.engine.cost import predict as predict
from fl_dpftrl.noise.engine.maker import RowMaker as RowMaker
from fl_dpftrl.noise.engine.server import MARK_NAME as MARK_NAME
from fl_dpftrl.noise.engine.server import RowServer as RowServer
