"""What all starts need is imported, drawn, converted and compiled once, before they are forked."""

import gc
import io

import pyarrow.dataset  # noqa: F401
from matplotlib import pyplot

from experiments.stackoverflow import train, training  # noqa: F401
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.prove.reports import page
from tests.experiments import conversions

conversions.convert()
seen.Seen().add(['a'])  # The first compiled loop loads Numba.
pyplot.figure().savefig(io.BytesIO())
for name in page._environment().list_templates():
  page._environment().get_template(name)
gc.freeze()  # No fork looks through the modules for garbage, or copies them for it.
