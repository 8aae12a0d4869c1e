"""Round results on disk: durable, private to their owner, read back exactly.

A checkpoint holds everything that follows from the rounds before it: model, optimiser, the
advanced noise state with its secret seed, and the measurements of the last round. It ends with
the SHA-256 of all that comes before, so a damaged one is never taken for another.
"""

import dataclasses
import hashlib
import io
import json
import os
import pathlib
import re
import zipfile
from typing import Any

import numpy as np
import tensorflow as tf

from fl_dpftrl.support.files import durable, mark

_FORMAT = 2
_KEPT = 3  # checkpoints that stay on disk: one, and others to fall back on
_DIGEST_CHARACTERS = 64
_NAME = re.compile(r'round-(\d{9})\.npz')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
  """Results of the first num_rounds rounds of a run.

  Attributes:
    num_rounds: rows of noise used up so far, by rounds that were lost too.
    state: the learning process's state, as nested structures of arrays; it holds the secret
      seed of the noise, and is not shown.
    measurements: metrics of the last round; empty if that round was lost or if no round was run.
    burnt: rounds that were begun, and whose results were lost.
  """

  num_rounds: int
  state: Any = dataclasses.field(repr=False)
  measurements: dict[str, float]
  burnt: tuple[int, ...] = ()


class CheckpointFolder:
  """The checkpoints of one run, in a folder that only its owner can read."""

  def __init__(self, folder: str | os.PathLike[str], template: Any):
    self._folder = pathlib.Path(folder)
    self._template = template
    self._folder.mkdir(parents=True, exist_ok=True)
    self._folder.chmod(0o700)
    durable.remove_leftovers(self._folder)

  def _path(self, num_rounds: int) -> pathlib.Path:
    return self._folder / f'round-{num_rounds:09d}.npz'

  def _stored(self) -> list[int]:
    matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)

  def save(self, checkpoint: Checkpoint) -> Checkpoint:
    """Writes a checkpoint durably and returns it as read back from disk."""
    about = {
      'format': _FORMAT,
      'num_rounds': checkpoint.num_rounds,
      'measurements': checkpoint.measurements,
      'burnt': checkpoint.burnt,
    }
    leaves: dict[str, Any] = {
      f'leaf_{index}': np.asarray(leaf)
      for index, leaf in enumerate(tf.nest.flatten(checkpoint.state))
    }
    buffer = io.BytesIO()
    np.savez(buffer, about=np.asarray(json.dumps(about)), **leaves)
    # The digest is the archive's comment, so that NumPy still reads the file.
    with zipfile.ZipFile(buffer, 'a') as archive:
      archive.comment = bytes(_DIGEST_CHARACTERS)
    with buffer.getbuffer() as content:  # Given back before the buffer goes.
      content[-_DIGEST_CHARACTERS:] = _digest(content)
      durable.write_durably(self._path(checkpoint.num_rounds), content, private=True)
    for old in self._stored()[:-_KEPT]:
      self._path(old).unlink()
    return self.load(checkpoint.num_rounds)

  def load(self, num_rounds: int) -> Checkpoint:
    """Reads a checkpoint."""
    path = self._path(num_rounds)
    expected = tf.nest.flatten(self._template)
    try:
      content = path.read_bytes()
      if content[-_DIGEST_CHARACTERS:] != _digest(memoryview(content)):
        raise ValueError('it is damaged')
      with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        about = json.loads(str(archive['about']))
        leaves = [archive[name] for name in archive.files if name != 'about']
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as e:
      raise ValueError(f'{path} is not a readable checkpoint: {e}') from e
    if about.get('format') != _FORMAT or about['num_rounds'] != num_rounds:
      raise ValueError(f'{path} is not a checkpoint of format {_FORMAT}')
    shapes = [np.asarray(leaf).ndim for leaf in expected]
    if [leaf.ndim for leaf in leaves] != shapes:
      raise ValueError(
        f'{path} holds the state of another model or mechanism; use the'
        ' settings that the run was started with'
      )
    return Checkpoint(
      num_rounds=num_rounds,
      state=tf.nest.pack_sequence_as(self._template, leaves),
      measurements=about['measurements'],
      burnt=tuple(about['burnt']),
    )

  def load_latest(self) -> tuple[Checkpoint | None, list[str]]:
    """Returns the newest readable checkpoint, and why newer ones are not; or LostStateError."""
    problems: list[str] = []
    for num_rounds in reversed(self._stored()):
      try:
        return self.load(num_rounds), problems
      except ValueError as error:
        problems.append(str(error))
    if problems:
      raise mark.LostStateError('; '.join(problems))
    return None, []

  @property
  def newest(self) -> int:
    """Most rounds of any checkpoint, readable or not; 0 without one."""
    return max(self._stored(), default=0)


def _digest(content: memoryview) -> bytes:
  """SHA-256, in hexadecimal, of all but the place for it at the end."""
  return hashlib.sha256(content[:-_DIGEST_CHARACTERS]).hexdigest().encode()
