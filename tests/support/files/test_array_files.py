"""Arrays from .npz files that claim anything."""

import io
import zipfile

import numpy as np
import pytest

from fl_dpftrl.support.files import array_files
from tests import made


def member(shape, dtype='<f8', content=b''):
  stream = io.BytesIO()
  np.lib.format.write_array_header_1_0(
    stream, {'descr': dtype, 'fortran_order': False, 'shape': shape}
  )
  return stream.getvalue() + content


@pytest.fixture
def packed(tmp_path):
  """Writes members into an .npz, and gives its path."""

  def write(compression=zipfile.ZIP_DEFLATED, **members):
    path = tmp_path / 'a.npz'
    with zipfile.ZipFile(path, 'w', compression) as archive:
      for name, content in members.items():
        archive.writestr(f'{name}.npy', content)
    return path

  return write


@pytest.mark.parametrize('save', [np.savez, np.savez_compressed])
def test_reads_what_numpy_writes(tmp_path, save):
  path = tmp_path / 'a.npz'
  values = {
    'c': np.arange(6.0).reshape(2, 3),
    'f': np.asfortranarray(np.eye(3)),
    'x.y': np.arange(3),
    'none': np.zeros((0, 2)),
    'large': np.ones(3, '>f4'),
  }
  save(path, **values)
  for name, value in values.items():
    np.testing.assert_array_equal(array_files.read(path, name), value)


@made.cases(
  'content, words',
  (member((10**12,)), 'not those of its shape'),
  (member((2**62, 8)), 'not those of its shape'),
  (member((3,), content=bytes(23)), 'not those of its shape'),
  (member((3,), content=bytes(25)), 'not those of its shape'),
  (member((1,), '|O', bytes(8)), 'no numbers'),
  (member((1,), '|V8', bytes(8)), 'no numbers'),
  (member((1,), '<U2', bytes(8)), 'no numbers'),
  (member((1,), '<c16', bytes(16)), 'no numbers'),
  (b'no array', 'no .npz'),
  (b'\x93NUMPY\x01\x00\xff\xff' + b'(' * 65535, 'no .npz'),
  (b'', 'no .npz'),
  ids=lambda value: repr(value)[:30],
)
def test_refuses_arrays_that_are_none(packed, content, words):
  with pytest.raises(ValueError, match=words):
    array_files.read(packed(c=content), 'c')


def test_refuses_what_unpacks_to_any_size(packed, monkeypatch):
  monkeypatch.setattr(array_files, 'MOST_BYTES', 2**20)
  path = packed(c=member((2**18,), content=bytes(2**21)))
  assert path.stat().st_size < 2**14
  with pytest.raises(ValueError, match='the most there may be is 1048576'):
    array_files.read(path, 'c')


def test_refuses_other_archives(packed, tmp_path):
  content = member((1,), content=bytes(8))
  with pytest.raises(ValueError, match='no array of the name b'):
    array_files.read(packed(c=content), 'b')
  with pytest.raises(ValueError, match='NumPy does not use'):
    array_files.read(packed(zipfile.ZIP_LZMA, c=content), 'c')
  many = packed(**{f'a{i}': b'' for i in range(3000)})
  with pytest.raises(ValueError, match='too many arrays'):
    array_files.read(many, 'a0')
  with pytest.raises(ValueError, match='not a file'):
    array_files.read(tmp_path, 'c')
  with pytest.raises(FileNotFoundError):
    array_files.read(tmp_path / 'b.npz', 'c')


@pytest.mark.slow
def test_every_flipped_bit_is_refused_or_changes_nothing(packed):
  values = np.arange(5.0)
  path = packed(c=member((5,), content=values.tobytes()))
  whole = path.read_bytes()
  for bit in range(0, 8 * len(whole), 3):
    changed = bytearray(whole)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    try:
      found = array_files.read(path, 'c')
    except ValueError:
      continue
    np.testing.assert_array_equal(found, values)
