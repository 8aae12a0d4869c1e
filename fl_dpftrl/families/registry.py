"""The one list of strategy families."""

from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import base
from fl_dpftrl.strategies import blt
from fl_dpftrl.strategies import dense
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import low_rank
from fl_dpftrl.strategies import stamped
from fl_dpftrl.strategies import toeplitz
from fl_dpftrl.strategies import tree
from fl_dpftrl.strategies import tree_full

FAMILIES: dict[str, type[base.Strategy]] = {
    cls.family: cls
    for cls in (
        identity.Identity,
        tree.TreeOnline,
        tree_full.TreeFull,
        banded.Banded,
        blt.BLT,
        dense.Dense,
        low_rank.LowRank,
        stamped.Stamped,
        toeplitz.BandedToeplitz,
    )
}
