"""Files that were changed at random, from a seed."""

import numpy as np

_PIECES = (
  *(b'"', b'\n', b'\r', b'\r\n', b',', b'\0', b'null', b'\xff', b'\xef\xbb\xbf', b'{', b'}'),
  *(b'[' * 500, b'9' * 400, b'1e999', b'-1', b' ', b'\x1b[2J', b'NaN', b'Infinity', b'true'),
  *(b'""', b'[]', b'{}', b'{"a":' * 500, b'1e-320', b'1000000000000', '\u200b'.encode()),
  *('\u202e'.encode(), b'e\xcc\x81', b'\\ud800', b'\\n'),
)


def mutated(content: bytes, seed: int) -> bytes:
  """Returns the content after one to three random changes."""
  rng = np.random.default_rng(seed)
  for _ in range(rng.choice([1, 1, 1, 2, 3])):
    content = _CHANGES[rng.integers(len(_CHANGES))](content or b'\n', rng)
  return content


def _parts(content: bytes, rng: np.random.Generator) -> tuple[bytes, bytes, bytes]:
  """Returns what is before a random part, the part, and what is after it."""
  start = int(rng.integers(len(content)))
  end = start + int(rng.integers(1, 1 + min(64, len(content) - start)))
  return content[:start], content[start:end], content[end:]


def _flip(content: bytes, rng: np.random.Generator) -> bytes:
  changed = bytearray(content)
  for place in rng.integers(len(content), size=rng.integers(1, 9)):
    changed[place] ^= 1 << int(rng.integers(8))
  return bytes(changed)


def _overwrite(content: bytes, rng: np.random.Generator) -> bytes:
  before, part, after = _parts(content, rng)
  return before + rng.bytes(len(part)) + after


def _cut_out(content: bytes, rng: np.random.Generator) -> bytes:
  before, _, after = _parts(content, rng)
  return before + after


def _cut_off(content: bytes, rng: np.random.Generator) -> bytes:
  return content[: rng.integers(len(content))]


def _repeat(content: bytes, rng: np.random.Generator) -> bytes:
  before, part, after = _parts(content, rng)
  return before + part * (1 + int(rng.choice([2, 10, 1000, 20_000]))) + after


def _move(content: bytes, rng: np.random.Generator) -> bytes:
  before, part, after = _parts(content, rng)
  return _put(before + after, part, rng)


def _put_in(content: bytes, rng: np.random.Generator) -> bytes:
  piece = _PIECES[rng.integers(len(_PIECES))]
  return _put(content, piece * int(rng.choice([1, 1, 1, 100, 30_000])), rng)


def _put(content: bytes, piece: bytes, rng: np.random.Generator) -> bytes:
  place = int(rng.integers(len(content) + 1))
  return content[:place] + piece + content[place:]


def _digit(content: bytes, rng: np.random.Generator) -> bytes:
  """Changes one digit, which may leave the file a good one of other values."""
  places = np.flatnonzero(np.isin(np.frombuffer(content, np.uint8), list(b'0123456789')))
  if not places.size:
    return content
  changed = bytearray(content)
  changed[rng.choice(places)] = rng.choice(list(b'0123456789'))
  return bytes(changed)


def _line(content: bytes, rng: np.random.Generator) -> bytes:
  """Cuts a line out, and may put it elsewhere."""
  lines = content.splitlines(keepends=True)
  line = lines.pop(rng.integers(len(lines)))
  if rng.random() < 0.5:
    lines.insert(rng.integers(len(lines) + 1), line)
  return b''.join(lines)


_CHANGES = (
  *(_flip, _overwrite, _cut_out, _cut_off, _repeat, _move, _put_in),
  *(_digit, _digit, _line, _line),
)
