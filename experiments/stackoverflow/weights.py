"""Weights of a network as an .npz file: model.npz of a run, or those to start from."""

import os

import numpy as np

from experiments.stackoverflow import networks
from fl_dpftrl.files import array_files
from fl_dpftrl.text import messages
from fl_dpftrl.training import report

NAME = report.MODEL_NAME


def read(
  path: str | os.PathLike[str], network: networks.Network, *, flag: str
) -> tuple[np.ndarray, ...]:
  """Returns the weights of a file, which must fit a network.

  Args:
    path: model.npz of a run.
    network: the network.
    flag: name of the flag that gave the path, for messages.

  Raises:
    OSError: if the file cannot be read.
    ValueError: naming the file, if it does not have the network's weights.
  """
  found = []
  for i, expected in enumerate(network.initial_weights(0)):
    shown = f'--{flag}={messages.quoted(os.fspath(path))}'
    try:
      weight = array_files.read(path, _name(i))
    except ValueError as problem:
      raise ValueError(f'{shown}: {problem}') from None
    if weight.shape != expected.shape:
      raise ValueError(
        f'{shown}: {_name(i)} must have shape {expected.shape} for this network and'
        f' vocabulary, has {weight.shape}'
      )
    if not np.isfinite(weight).all():
      raise ValueError(f'{shown}: {_name(i)} has numbers that are not finite')
    found.append(weight.astype(np.float32))
  return tuple(found)


def _name(index: int) -> str:
  return f'weight{index}'
