"""Schemes by which participation is drawn, by their names in flags and claims."""

from fl_dpftrl.participation.batches import Batches as Batches
from fl_dpftrl.participation.rules.fixed_size import CyclicFixedSize as CyclicFixedSize
from fl_dpftrl.participation.rules.poisson import CyclicPoisson as CyclicPoisson
from fl_dpftrl.participation.rules.secret_bins import SecretBins as SecretBins
from fl_dpftrl.participation.rules.shuffled import Shuffled as Shuffled
from fl_dpftrl.participation.rules.shuffled import ShuffledOnce as ShuffledOnce

Sampled = Batches | SecretBins
Scheme = Sampled | Shuffled

BATCHES: dict[str, type[Batches | Shuffled]] = {
  cls.kind: cls for cls in (CyclicPoisson, CyclicFixedSize, Shuffled, ShuffledOnce)
}
SCHEMES: dict[str, type[Scheme]] = {**BATCHES, SecretBins.kind: SecretBins}
