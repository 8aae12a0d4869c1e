"""The optimisers of clients and server that a run's flags name.

None of them changes the guarantee: clients' updates are clipped whatever made
them, and the server's optimiser only post-processes the noised sums. Strategies
are optimised for a server whose models are linear in the sums, as those of SGD
with momentum are; for Adam and Yogi their losses are an approximation.
"""

import tensorflow_federated as tff

from experiments.stackoverflow import configuration

CLIENT, SERVER = configuration.CLIENT_OPTIMIZERS, configuration.SERVER_OPTIMIZERS
_CLIENT_MOMENTUM = 0.9
# Large enough for the noise not to be scaled up where gradients are small.
_SERVER_ADAPTIVITY = 1e-3


def client(hparams: configuration.Hparams) -> tff.learning.optimizers.Optimizer:
  """Returns the optimiser of the clients."""
  optimizers, rate = tff.learning.optimizers, hparams.client_learning_rate
  return {
    'sgd': lambda: optimizers.build_sgdm(rate),
    'sgdm': lambda: optimizers.build_sgdm(rate, momentum=_CLIENT_MOMENTUM),
    'adam': lambda: optimizers.build_adam(rate),
    'adamw': lambda: optimizers.build_adamw(rate),
  }[hparams.client_optimizer]()


def server(hparams: configuration.Hparams) -> tff.learning.optimizers.Optimizer:
  """Returns the optimiser of the server, whose learning rate is then scheduled.

  Source: Reddi et al. 2020, "Adaptive federated optimization", for FedAdam,
  FedYogi and their adaptivity of 1e-3.
  """
  optimizers, rate = tff.learning.optimizers, hparams.server_learning_rate
  momentum = hparams.server_momentum
  return {
    'sgdm': lambda: optimizers.build_sgdm(rate, momentum=momentum or None),
    'adam': lambda: optimizers.build_adam(rate, beta_1=momentum, epsilon=_SERVER_ADAPTIVITY),
    'yogi': lambda: optimizers.build_yogi(rate, beta_1=momentum, epsilon=_SERVER_ADAPTIVITY),
  }[hparams.server_optimizer]()
