"""Rounds of pfl-research, in its environment: prints the times of each round but the first.

Started by torchrun, its processes share the clients of each round. A round is what it is on the
other sides: SGD on each client, updates clipped to norm 1, their sum with Gaussian noise, and a
step of the server. Processor seconds are those of all processes.
"""

import resource
import time
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from torch import nn
from torch.nn import functional

_RATE = 0.1


class Network(nn.Module):
  """The masked loss of both networks."""

  def loss(self, tokens, targets):
    logits = self(tokens)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)

  def metrics(self, tokens, targets):
    return {'loss': Weighted(self.loss(tokens, targets).item(), len(tokens))}


class LogBilinear(Network):
  def __init__(self, num_tokens, embedding=64, context=3):
    super().__init__()
    self.context = context
    self.embeddings = nn.Parameter(torch.empty(num_tokens, embedding).uniform_(-0.1, 0.1))
    self.mixing = nn.Linear(context * embedding, embedding, bias=False)
    self.bias = nn.Parameter(torch.zeros(num_tokens))

  def forward(self, tokens):
    padded = functional.pad(tokens, (self.context - 1, 0))
    windows = padded.unfold(1, self.context, 1)
    words = functional.embedding(windows, self.embeddings).flatten(2)
    return self.mixing(words) @ self.embeddings.T + self.bias


class Lstm(Network):
  def __init__(self, num_tokens, embedding=96, units=670):
    super().__init__()
    self.embeddings = nn.Embedding(num_tokens, embedding)
    self.lstm = nn.LSTM(embedding, units, batch_first=True)
    # PyTorch's LSTM adds two biases; the other sides' has one.
    self.lstm.bias_hh_l0.requires_grad_(False)
    self.projection = nn.Linear(units, embedding)
    self.output = nn.Linear(embedding, num_tokens)

  def forward(self, tokens):
    states, _ = self.lstm(self.embeddings(tokens))
    return self.output(self.projection(states))


class Times(TrainingProcessCallback):
  """Takes the time of each round."""

  def __init__(self):
    self.ends, self.computed = [time.monotonic()], [_computed()]

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    self.computed.append(_computed())
    self.ends.append(time.monotonic())
    return False, Metrics()


def _computed():
  used = resource.getrusage(resource.RUSAGE_SELF)
  seconds = torch.tensor([used.ru_utime + used.ru_stime], dtype=torch.float64)
  if torch.distributed.is_initialized():
    torch.distributed.all_reduce(seconds)
  return seconds.item()


def measure(case: dict[str, Any], batch_size: int) -> list[dict[str, float]] | None:
  """Returns elapsed and processor seconds of each round; None but in the first process."""
  network = {'lstm': Lstm, 'log_bilinear': LogBilinear}[case['network']]
  module = network(case['num_tokens'], **case['sizes'])
  shape = (case['clients'], case['sentences'], case['length'] + 1)
  words = np.random.default_rng(0).integers(1, case['num_tokens'] - 3, shape)
  rows = torch.from_numpy(words)
  clients = list(range(case['clients']))
  data = FederatedDataset(
    lambda client: Dataset([rows[client, :, :-1], rows[client, :, 1:]]),
    get_user_sampler('minimize_reuse', clients),
    dict.fromkeys(clients, case['sentences']),
  )
  parameters = [p for p in module.parameters() if p.requires_grad]
  noise = GaussianMechanism(clipping_bound=1.0, relative_noise_stddev=1e-3)
  mechanism, times = CentrallyAppliedPrivacyMechanism(noise), Times()
  FederatedAveraging().run(
    # Evaluated only before the first round.
    NNAlgorithmParams(case['passes'] + 1, case['passes'] + 2, len(clients), None),
    SimulatedBackend(training_data=data, val_data=data, postprocessors=[mechanism]),
    PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(parameters, lr=1.0)),
    NNTrainHyperParams(local_num_epochs=1, local_learning_rate=_RATE, local_batch_size=batch_size),
    callbacks=[times],
  )
  if pytorch_ops.distributed.global_rank:
    return None
  seconds, computed = np.diff(times.ends)[1:], np.diff(times.computed)[1:]
  return [dict(seconds=s, cpu_seconds=c) for s, c in zip(seconds.tolist(), computed.tolist())]
