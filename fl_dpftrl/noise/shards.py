"""Rows of noise in slices, each made by an actor of a Ray cluster.

A slice of a row is a function of the seed, the row and its range of coordinates, and needs no
other slice. So the row has the same bits as one that this process makes, and an actor that was
lost makes its slice again: from its last snapshot, or from the seed. These actors see the seed.
"""

import os
import pathlib
import time
from typing import Any

import numpy as np
import ray
from ray import exceptions

from fl_dpftrl.noise import ahead, normals

_POLL_SECONDS = 0.2
_WAIT_SECONDS = 600.0  # without a slice, after which making a row fails


class Slice(ahead.LocalSource):
  """A slice of each row of a strategy's noise; an actor."""

  def __init__(self, size: int, **recipe: Any):
    super().__init__(size=size, **recipe)
    self._size = size

  def made(self, row: int, used: int) -> tuple[np.ndarray, ahead.Made]:
    """Returns the slice of a row, int64, and what is known of it."""
    out = np.empty(self._size, np.int64)
    return out, self.make(row, out, used)


class RowSlices(ahead.Source):
  """Rows whose slices actors make at once; the source of them.

  Args:
    number: most actors.
    size: number of coordinates of a row.
    folder: for noise, on the machine of each actor; None for none.
    recipe: arguments of an `ahead.LocalSource`, but for these.
  """

  def __init__(self, number: int, size: int, folder: str | os.PathLike[str] | None, **recipe: Any):
    if not ray.is_initialized():
      raise ValueError('noise_machines needs a Ray cluster: call tff_inprocess.use_machines before')
    num_chunks = -(-size // normals.CHUNK)
    number = min(number, num_chunks)
    bounds = [num_chunks * i // number for i in range(number + 1)]
    self.slices: list[tuple[slice, Any]] = []
    for first, last in zip(bounds, bounds[1:]):
      where = slice(first * normals.CHUNK, min(last * normals.CHUNK, size))
      # By its range: another number of actors has other slices, and none may read another's.
      where_name = f'slice-{where.start}-{where.stop}'
      # A slice is a pure function: Ray starts a lost actor again and repeats its call.
      actor = (
        ray.remote(Slice)
        .options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy='SPREAD')
        .remote(
          size=where.stop - where.start,
          first_chunk=first,
          folder=None if folder is None else pathlib.Path(folder).absolute() / where_name,
          **recipe,
        )
      )
      self.slices.append((where, actor))

  def make(self, row: int, out: np.ndarray, used: int) -> ahead.Made:
    asked = {actor.made.remote(row, used): where for where, actor in self.slices}
    waiting, norm, start, end = list(asked), 0.0, 0, 0
    deadline = time.monotonic() + _WAIT_SECONDS
    while waiting:
      ready, waiting = ray.wait(waiting, num_returns=1, timeout=_POLL_SECONDS)
      if self._is_abandoned:
        raise ahead.Abandoned
      for reference in ready:
        deadline = time.monotonic() + _WAIT_SECONDS
        try:
          out[asked[reference]], facts = ray.get(reference)
        except exceptions.RayError as error:
          raise RuntimeError(f'a slice of a noise row failed: {type(error).__name__}') from None
        norm, start, end = facts.norm, start + facts.before, end + facts.after
      if time.monotonic() > deadline:
        raise RuntimeError(
          f'no slice of a noise row was made in {_WAIT_SECONDS:g} seconds: the cluster has'
          ' lost the machines that make noise'
        )
    return ahead.Made(norm, start % 2**64, end % 2**64)

  def close(self) -> None:
    """Ends the actors."""
    for _, actor in self.slices:
      ray.kill(actor, no_restart=True)
    self.slices.clear()
