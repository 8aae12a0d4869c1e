"""Studies: mechanisms compared by training anything, at equal ε.

Once the room is loaded `dpftrl.study` is the room, and not its function. So it is called like it.
"""

import sys
import types
from typing import Any

from fl_dpftrl.study.cells import Cell as Cell
from fl_dpftrl.study.comparing import Study as Study
from fl_dpftrl.study.comparing import study as study
from fl_dpftrl.study.designs import Mechanism as Mechanism
from fl_dpftrl.study.tuned import HeldOut as HeldOut
from fl_dpftrl.study.tuned import Winner as Winner


class _Room(types.ModuleType):
  def __call__(self, run: Any, **options: Any) -> Study | Winner:
    return study(run, **options)


sys.modules[__name__].__class__ = _Room
