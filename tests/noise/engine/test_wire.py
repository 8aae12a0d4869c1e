"""Messages of noise workers: what was sent arrives bit for bit, all else is refused."""

import io
import json
import pickle

import numpy as np
import pytest

from fl_dpftrl import digests
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.noise.engine import draws, wire
from tests import every_family


def a_slice(**changes):
  values = dict(
    strategy={'family': 'identity', 'parameters': {}},
    arrays_bytes=0,
    row_size=3 * draws.CHUNK,
    first_chunk=1,
    size=draws.CHUNK,
    num_rounds=7,
    stddev=0.1,
    seed=bytes(range(16)),
    memory='memory',
    precision='float32',
    snapshot_rows=4,
    made_by='a version',
  )
  return wire.Slice(**values | changes)


@pytest.mark.parametrize('name', every_family.NAMES)
def test_a_strategy_arrives_as_it_was(tmp_path, name):
  strategy = every_family.example(name, 12)
  described, arrays = wire.pack(strategy)
  sent = a_slice(strategy=described, arrays_bytes=len(arrays))
  received = wire.decode_slice(sent.encode())
  assert received == sent
  parts = [wire.decode_array(part, len(arrays)) for part in wire.array_messages(arrays)]
  found = wire.unpack(received.strategy, b''.join(parts), tmp_path)
  assert digests.strategy_digest(found) == digests.strategy_digest(strategy)
  assert received.identity(found) == sent.identity(strategy)


@pytest.mark.parametrize('size', [1, wire.PART_BYTES // 4, wire.PART_BYTES // 2 + 3])
def test_a_row_arrives_as_it_was(size):
  values = np.random.default_rng(size).normal(size=size).astype(np.float32)
  first, *parts = map(wire.decode_answer, wire.encode_row(0.1, values))
  assert first == wire.Made(0.1, size)
  np.testing.assert_array_equal(np.concatenate(parts), values)


def test_small_messages_arrive_as_they_were():
  assert wire.decode_request(wire.encode_request(wire.Request(5, -1))) == (5, -1)
  assert wire.decode_answer(wire.encode_working(wire.Working(3))) == wire.Working(3)
  line = wire.decode_answer(wire.encode_failure('no\nroom \x1b[0m' + 999 * 'é')).line
  assert line.startswith('no room ') and len(line) == 300 and line.isprintable()


@pytest.mark.parametrize(
  'changes, message',
  [
    (dict(size=0), 'size must be a whole number from 1'),
    (dict(size=True), 'size must be a whole number'),
    (dict(size=2**62), 'size must be a whole number'),
    (dict(row_size=draws.CHUNK), 'ends after the row'),
    (dict(first_chunk=-1), 'first_chunk must be'),
    (dict(arrays_bytes=2**40), 'arrays_bytes must be'),
    (dict(num_rounds=2**31), 'num_rounds must be'),
    (dict(stddev=-1.0), 'stddev must be at least 0'),
    (dict(stddev=1), 'stddev must be a number'),
    (dict(stddev=float('nan')), 'stddev must be a number'),
    (dict(seed=b'short'), 'seed must have 16 bytes'),
    (dict(memory='/etc'), 'memory must be one of'),
    (dict(precision='float16'), 'precision must be one of'),
    (dict(made_by=301 * 'a'), 'made_by must be a short text'),
    (dict(strategy=[]), 'strategy must be an object'),
  ],
)
def test_a_slice_that_will_not_do(changes, message):
  with pytest.raises(ValueError, match=message):
    a_slice(**changes)


def test_a_strategy_that_is_too_long_is_refused_where_it_is():
  long = {'family': 'identity', 'parameters': {'x': [0.5] * (wire.PART_BYTES // 4)}}
  with pytest.raises(ValueError, match='cannot be sent to a noise worker'):
    a_slice(strategy=long).encode()


def changed(**changes):
  values = json.loads(a_slice().encode()[1:])
  return b'S' + wire._canonical({**values, **changes})


@pytest.mark.parametrize(
  'message',
  [
    b'',
    b'S',
    b'S[]',
    b'S{}',
    pickle.dumps(a_slice),
    b'S' + pickle.dumps([1]),
    a_slice().encode() + b' ',
    a_slice().encode()[:-1],
    b'A' + a_slice().encode()[1:],
    changed(seed=5),
    changed(seed='zz' * 16),
    changed(size='5'),
    changed(folder='/'),
    b'S' + b'[' * 100_000,
    b'S' + bytes(wire.MOST_BYTES),
  ],
  ids=range(15),
)
def test_what_is_no_slice_is_refused(message):
  with pytest.raises(ValueError):
    wire.decode_slice(message)


@pytest.mark.parametrize(
  'message',
  [
    b'',
    b'P',
    b'P123',
    b'P' + bytes(2 * wire.PART_BYTES),
    b'M123',
    b'W',
    b'X1234',
    b'F' + bytes(5000),
    pickle.dumps(1),
  ],
  ids=range(9),
)
def test_what_is_no_answer_is_refused(message):
  with pytest.raises(ValueError, match='a message of kind'):
    wire.decode_answer(message)


@pytest.mark.parametrize('row, used', [(-1, 0), (0, -2), (2**40, 0), (0, 2**40)])
def test_rows_out_of_range_are_refused(row, used):
  with pytest.raises(ValueError, match='out of range'):
    wire.decode_request(wire.encode_request(wire.Request(row, used)))


def test_arrays_are_never_unpickled(tmp_path):
  marker = tmp_path / 'executed'

  class Harm:
    def __reduce__(self):
      return marker.touch, ()

  described, _ = wire.pack(toeplitz.BandedToeplitz(np.array([1.0, 0.5])))
  stream = io.BytesIO()
  ((name, _),) = [p for p in described['parameters'].items() if isinstance(p[1], dict)]
  np.savez(stream, **{name: np.array([Harm()], dtype=object)})
  with pytest.raises(ValueError, match='cannot be read'):
    wire.unpack(described, stream.getvalue(), tmp_path)
  assert not marker.exists()
