"""The folder `canaries` of a run: its secret coins and directions, and releases along these.

Directions are columns of a Hadamard matrix with random signs, on p random coordinates, where p is
the largest power of 2 within those of an update. So all p are orthonormal, one transform of a
release gives its products with all of them, and these have all of its energy there. The first of
them belong to canaries. What is drawn comes from one secret seed, of 256 bits, which is on disk
before the first round.
"""

import contextlib
import hashlib
import io
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from fl_dpftrl.claims import run_claim
from fl_dpftrl.logs import refusals
from fl_dpftrl.noise import normals
from fl_dpftrl.support.files import durable, mark

NAME = 'canaries'
"""Name of the folder in that of a run."""

_MOST = 1e30  # standard deviations, whose sums float32 holds


class CanaryRecords:
  """Coins, directions, and what rounds released along these.

  Attributes:
    coins: whether each canary sends its update, bool, shape [number].
    size: p, directions that there are, those of canaries first.
  """

  def __init__(
    self,
    folder: pathlib.Path,
    claim: run_claim.Claim,
    run: str,
    num_coordinates: int | None = None,
    num_rounds: int | None = None,
  ):
    """Opens the folder, or makes it for a run without rounds.

    Args:
      folder: folder of the run.
      claim: its claim, which has canaries.
      run: random identity of the run, in hexadecimal.
      num_coordinates: coordinates of an update; None for those that are stored.
      num_rounds: rounds that were begun, if further ones will be.

    Raises:
      ValueError: for more canaries than directions, and the secret of another run or model.
      LostStateError: for a secret that is gone or damaged, whose canaries cannot go on, and for
        releases of rounds that were not begun.
    """
    canaries: Any = claim.canaries
    self._folder, self._norm = folder / NAME, canaries.norm
    self._multiplier = run_claim.update_noise_multiplier(claim)
    path = self._folder / 'secret.json'
    if num_coordinates is not None:
      _num_directions(num_coordinates, canaries.number)
    last_release = max(released_rounds(folder), default=-1)
    if num_rounds is not None and last_release >= num_rounds:
      raise mark.LostStateError(
        f'{folder} has {num_rounds} rounds, and {NAME} the release of round {last_release}: put the'
        ' newest log, ledger and mark back'
      )
    if num_rounds == 0 and not _is_of(path, run, num_coordinates):
      self._folder.mkdir(mode=0o700, exist_ok=True)
      seed = normals.system_seed().hex()
      durable.write(path, {'seed': seed, 'run': run, 'num_coordinates': num_coordinates})
      durable.sync_names(self._folder)
    if num_rounds is not None:
      durable.remove_leftovers(self._folder)
    self._seed, identity, size = _secret(path)
    if identity != run:
      raise ValueError(f'{path} is of another run')
    if num_coordinates not in (None, size):
      raise ValueError(f'num_coordinates must be {size}, as before, got {num_coordinates}')
    self._num_coordinates, self.size = size, _num_directions(size, canaries.number)
    self.coins = self._bits('coins', canaries.number).astype(bool)
    keys = self._drawn('coordinates', 8 * size).view('<u8')
    self._places = np.argsort(keys, kind='stable')[: self.size]
    self._signs = (1.0 - 2.0 * self._bits('signs', self.size)) / np.sqrt(self.size)

  def _drawn(self, purpose: str, num_bytes: int) -> np.ndarray:
    """Returns secret random bytes, which no release of NumPy draws otherwise."""
    drawn = hashlib.shake_256(self._seed + purpose.encode()).digest(num_bytes)
    return np.frombuffer(drawn, np.uint8)

  def _bits(self, purpose: str, count: int) -> np.ndarray:
    return np.unpackbits(self._drawn(purpose, -(-count // 8)), count=count)

  def updates(self, canaries: np.ndarray, clip_norm: float) -> Iterator[np.ndarray]:
    """Yields updates, float32, shape [coordinates], of those canaries, by number, that send one."""
    for number in canaries[self.coins[canaries]]:
      row = np.full(1, clip_norm * self._norm, np.float32)
      for bit in range(self.size.bit_length() - 1):
        row = np.append(row, -row if number >> bit & 1 else row)
      update = np.zeros(self._num_coordinates, np.float32)
      update[self._places] = row * np.float32(self._signs)
      yield update

  def put(self, t: int, noised_sum: np.ndarray, clip_norm: float) -> None:
    """Stores a round's products with all directions, durably, before the round is released.

    Args:
      t: the round.
      noised_sum: its sum of updates with noise, shape [coordinates]; ValueError for another shape,
        and for what is not finite.
      clip_norm: clip norm of the round.
    """
    noised_sum, size = np.asarray(noised_sum), self._num_coordinates
    released = noised_sum.real.astype(np.float64) / (self._multiplier * clip_norm)
    is_sum = released.shape == (size,) and np.isrealobj(noised_sum)
    if not (is_sum and (np.abs(released) < _MOST).all()):
      raise ValueError(f'noised_sum must be {size} finite numbers, got shape {noised_sum.shape}')
    values, width = self._signs * released[self._places], 1
    while width < self.size:  # The transform of Walsh and Hadamard.
      first, second = values.reshape(-1, 2, width).swapaxes(0, 1)
      values = np.stack([first + second, first - second], axis=1).ravel()
      width *= 2
    content = io.BytesIO()
    np.save(content, values.astype(np.float32))
    durable.write_durably(self._path(t), content.getvalue(), private=True)

  def releases(self, rounds: list[int], part: slice) -> np.ndarray:
    """Returns the products of some rounds with a part of the directions, shape [rounds, part]."""
    rows = []
    for path in map(self._path, rounds):
      try:
        row = np.load(path, mmap_mode='r').reshape(self.size)[part]
      except (ValueError, OSError, EOFError) as error:
        raise refusals.LogError(f'{path}: is damaged or gone, {error}; put it back') from error
      if row.dtype != np.float32 or not np.isfinite(row).all():
        raise refusals.LogError(f'{path}: is damaged, as it has no finite float32 numbers')
      rows.append(row)
    return np.array(rows, np.float64)

  def _path(self, t: int) -> pathlib.Path:
    return self._folder / f'release-{t:09d}.npy'


def _secret(path: pathlib.Path) -> tuple[bytes, str, int]:
  """Returns seed, identity of the run, and coordinates of an update, or raises LostStateError."""
  try:
    facts = durable.read(path)
    seed, run, size = facts.pop('seed'), facts.pop('run'), facts.pop('num_coordinates')
    secret = bytes.fromhex(seed), str(run), int(size)
  except (ValueError, KeyError, OSError) as error:
    raise mark.LostStateError(
      f'{path} is gone or damaged, and has the coins: put it back, for further rounds and audits'
    ) from error
  if facts:
    raise ValueError(f'{path} is of a later version')
  return secret


def _is_of(path: pathlib.Path, run: str, num_coordinates: int | None) -> bool:
  with contextlib.suppress(mark.LostStateError):
    return _secret(path)[1:] == (run, num_coordinates)
  return False


def _num_directions(num_coordinates: int, num_canaries: int) -> int:
  """Returns the largest power of 2 within; ValueError where there are more canaries."""
  count = 1 << (num_coordinates.bit_length() - 1)
  if num_canaries > count:
    raise ValueError(
      f'canaries={num_canaries} must be at most {count}, the largest power of 2 within the'
      f' {num_coordinates} coordinates of an update'
    )
  return count


def released_rounds(folder: pathlib.Path) -> list[int]:
  """Returns the rounds of a run's folder that released beside canaries, ascending."""
  return sorted(int(path.stem[-9:]) for path in (folder / NAME).glob(f'release-{"[0-9]" * 9}.npy'))
