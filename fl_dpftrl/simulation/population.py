"""All devices that could take part, and their habits."""

import dataclasses
from typing import Sequence

import numpy as np

from fl_dpftrl.simulation import availability as availability_lib
from fl_dpftrl.simulation import seeds


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
  """The devices, each with a habit that it draws from the seed.

  Attributes:
    device_ids: shape [num_devices], text or int64, no two alike. A device's
      place here is its index everywhere else.
    seed: names the draws of the habits.
    availability: when devices of this kind can be reached.

  Raises:
    ValueError: for ids that are empty, alike, or neither text nor whole
      numbers, and for a negative seed.
  """

  device_ids: Sequence[str] | Sequence[int] | np.ndarray
  seed: int = 0
  availability: availability_lib.Availability = availability_lib.Always()
  windows: availability_lib.Windows = dataclasses.field(init=False, repr=False)
  _order: np.ndarray = dataclasses.field(init=False, repr=False)

  def __post_init__(self):
    ids = np.array(self.device_ids)
    if ids.ndim != 1 or not ids.size:
      raise ValueError(
          f'device_ids must be a non-empty list, got shape {ids.shape}'
      )
    if ids.dtype.kind in 'iu':
      ids = ids.astype(np.int64)
    elif ids.dtype.kind != 'U':
      raise ValueError(
          f'device_ids must be text or whole numbers, got {ids.dtype}'
      )
    seeds.check_seed(self.seed)
    order = np.argsort(ids, kind='stable')
    twice = ids[order][1:] == ids[order][:-1]
    if twice.any():
      raise ValueError(
          f'device_ids holds {ids[order][1:][twice][0].item()!r} twice'
      )
    ids.setflags(write=False)
    object.__setattr__(self, 'device_ids', ids)
    object.__setattr__(self, '_order', order)
    object.__setattr__(
        self, 'windows', self.availability.windows(ids.size, self.seed)
    )

  @property
  def num_devices(self) -> int:
    return self.device_ids.size

  def available(self, now: int) -> np.ndarray:
    """Who can be reached: bool, shape [num_devices]; now in UTC seconds."""
    return self.windows.available(now)

  def indices(self, device_ids: Sequence[str] | np.ndarray) -> np.ndarray:
    """The indices of these ids: int64, of their shape.

    Raises:
      ValueError: for an id that is no device of the population.
    """
    wanted = np.asarray(device_ids)
    if not wanted.size:
      return np.zeros(wanted.shape, np.int64)
    places = np.searchsorted(self.device_ids, wanted, sorter=self._order)
    found = self._order[np.minimum(places, self.num_devices - 1)]
    unknown = self.device_ids[found] != wanted
    if np.any(unknown):
      raise ValueError(
          f'device_id {wanted[unknown][0].item()!r} is no device of this'
          f' population of {self.num_devices}'
      )
    return found.astype(np.int64)
