"""The folder `canaries` of a run: its secret coins and directions, and releases along these.

Directions are columns of a Hadamard matrix with random signs, on p random coordinates, where p is
the largest power of 2 within those of an update. So all p are orthonormal, one transform of a
release gives its products with all of them, and these have all of its energy there. The first of
them belong to canaries. What is drawn comes from one secret seed, of 256 bits, which is on disk
before the first round.
"""

import hashlib
import io
import pathlib
import re

import numpy as np

from fl_dpftrl.claims.canaries import Canaries
from fl_dpftrl.logs import refusals
from fl_dpftrl.noise import normals
from fl_dpftrl.support.files import durable, mark

NAME = 'canaries'
"""Name of the folder in that of a run."""

_SECRET, _RELEASE = 'secret.json', re.compile(r'release-(\d{9})\.npy')


class CanaryRecords:
  """Coins, directions, and what rounds released along these.

  Attributes:
    coins: whether each canary sends its update, bool, shape [number].
    size: p, directions that there are, those of canaries first.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    canaries: Canaries,
    run: str,
    num_coordinates: int | None = None,
    num_rounds: int = 1,
  ):
    """Opens the folder, or makes it for a run without rounds.

    Args:
      folder: folder of the run.
      canaries: those of its claim.
      run: random identity of the run, in hexadecimal.
      num_coordinates: coordinates of an update; None for those that are stored.
      num_rounds: rounds that were begun.

    Raises:
      ValueError: for more canaries than directions, and the secret of another run or model.
      LostStateError: for a secret that is gone or damaged, whose canaries cannot go on.
    """
    self._folder, path = folder / NAME, folder / NAME / _SECRET
    if not path.exists() and not num_rounds and num_coordinates is not None:
      self._folder.mkdir(mode=0o700, exist_ok=True)
      seed = normals.system_seed().hex()
      durable.write(path, {'seed': seed, 'run': run, 'num_coordinates': num_coordinates})
      durable.sync_names(self._folder)
    try:
      facts = durable.read(path)
      self._seed, self._num_coordinates = (
        bytes.fromhex(facts['seed']),
        int(facts['num_coordinates']),
      )
    except (ValueError, KeyError, OSError) as error:
      raise mark.LostStateError(f'{path} is gone or damaged, and tells the coins') from error
    if facts.keys() != {'seed', 'run', 'num_coordinates'}:
      raise mark.LostStateError(f'{path} is of a later version, which may mean other coins')
    if facts['run'] != run or num_coordinates not in (None, self._num_coordinates):
      raise ValueError(f'{path} is of another run, or of updates of another size')
    self.size = 1 << (self._num_coordinates.bit_length() - 1)
    if canaries.number > self.size:
      raise ValueError(
        f'canaries={canaries.number} must be at most {self.size}, the largest power of 2 within the'
        f' {self._num_coordinates} coordinates of an update'
      )
    bits = np.unpackbits(self._drawn('coins', -(-canaries.number // 8)))
    self.coins = bits[: canaries.number].astype(bool)
    keys = self._drawn('coordinates', 8 * self._num_coordinates).view('<u8')
    self._places = np.argsort(keys, kind='stable')[: self.size]
    bits = np.unpackbits(self._drawn('signs', -(-self.size // 8)))[: self.size]
    self._signs = 1.0 - 2.0 * bits

  def _drawn(self, purpose: str, num_bytes: int) -> np.ndarray:
    """Returns secret random bytes, which no release of NumPy draws otherwise."""
    drawn = hashlib.shake_256(self._seed + purpose.encode()).digest(num_bytes)
    return np.frombuffer(drawn, np.uint8)

  def updates(self, numbers: np.ndarray) -> np.ndarray:
    """Returns the directions of some canaries, float32, shape [numbers, coordinates], of norm 1."""
    rows = np.ones((len(numbers), 1), np.float32)
    for bit in range(self.size.bit_length() - 1):
      rows = np.hstack(
        [rows, rows * (1.0 - 2.0 * (numbers >> bit & 1))[:, None].astype(np.float32)]
      )
    updates = np.zeros((len(numbers), self._num_coordinates), np.float32)
    updates[:, self._places] = rows * (self._signs / np.sqrt(self.size)).astype(np.float32)
    return updates

  def put(self, t: int, released: np.ndarray) -> None:
    """Stores a round's products with all directions, durably, before the round is released.

    Args:
      t: the round.
      released: its sum of updates with noise, in standard deviations of Z.
    """
    values = self._signs / np.sqrt(self.size) * released[self._places]
    width = 1
    while width < self.size:  # The transform of Walsh and Hadamard.
      first, second = values.reshape(-1, 2, width).swapaxes(0, 1)
      values = np.stack([first + second, first - second], axis=1).ravel()
      width *= 2
    content = io.BytesIO()
    np.save(content, values.astype(np.float32))
    path = self._folder / f'release-{t:09d}.npy'
    durable.write_durably(path, content.getvalue(), private=True)

  def releases(self, rounds: list[int], part: slice) -> np.ndarray:
    """Returns the products of some rounds with a part of the directions, shape [rounds, part]."""
    return np.array([self._release(t)[part] for t in rounds], np.float64)

  def _release(self, t: int) -> np.ndarray:
    path = self._folder / f'release-{t:09d}.npy'
    try:
      products = np.load(path, mmap_mode='r')
    except (ValueError, OSError, EOFError) as error:
      raise refusals.LogError(f'{path}: is damaged or gone, {error}; put it back') from error
    if products.shape != (self.size,):
      raise refusals.LogError(f'{path}: is of updates of another size; put it back')
    return products


def released_rounds(folder: pathlib.Path) -> list[int]:
  """Returns the rounds of a run's folder that released beside canaries, ascending."""
  matches = (_RELEASE.fullmatch(path.name) for path in (folder / NAME).glob('*.npy'))
  return sorted(int(match[1]) for match in matches if match)
