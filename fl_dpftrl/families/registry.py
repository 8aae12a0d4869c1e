"""The one list of strategy families."""

from fl_dpftrl.families import banded
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.families import base
from fl_dpftrl.families import blt
from fl_dpftrl.families import dense
from fl_dpftrl.families import identity
from fl_dpftrl.families import low_rank
from fl_dpftrl.families import stamped
from fl_dpftrl.families import tree_full
from fl_dpftrl.families import tree_online

FAMILIES: dict[str, type[base.Strategy]] = {
    cls.family: cls
    for cls in (
        identity.Identity,
        tree_online.TreeOnline,
        tree_full.TreeFull,
        banded.Banded,
        blt.BLT,
        dense.Dense,
        low_rank.LowRank,
        stamped.Stamped,
        banded_toeplitz.BandedToeplitz,
    )
}
