"""Structures of updates: what is taken, what comes back, and what is refused where."""

import collections
from typing import NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.run import structures
from tests import made


class Layer(NamedTuple):
  kernel: np.ndarray
  bias: np.ndarray


def array(*shape, dtype=np.float32):
  return np.arange(np.prod(shape, dtype=int), dtype=dtype).reshape(shape)


MODEL = {
  'dense': Layer(array(2, 3), array(3)),
  'more': [array(4, dtype=np.float64), (array(), array(0))],
}

shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
leaves = st.builds(lambda shape, kind: np.ones(shape, kind), shapes, st.sampled_from('fd'))
nested = st.recursive(
  leaves,
  lambda inner: (
    st.lists(inner, min_size=1, max_size=3)
    | st.dictionaries(st.sampled_from('abc'), inner, min_size=1)
    | st.tuples(inner, inner)
  ),
  max_leaves=6,
)


@hypothesis.given(nested)
def test_what_is_taken_apart_is_put_together(structure):
  hypothesis.assume(sum(a.size for _, a in structures._leaves(structure, structure, '')))
  template = structures.Template.of(structure)
  flat = template.flat(structure)
  assert [a.shape for a in flat] == [(1, size) for size in template.sizes]
  values = np.arange(template.size, dtype=float)
  again = template.packed(values, structure)
  np.testing.assert_array_equal(np.concatenate(template.flat(again), axis=1)[0], values)
  assert repr(structures._mapped(again, lambda a: (a.shape, a.dtype))) == repr(
    structures._mapped(structure, lambda a: (a.shape, a.dtype))
  )


def test_kinds_of_containers_come_back():
  template = structures.Template.of(MODEL)
  assert template.size == 14 and template.names[0] == "['dense'][0]"
  again = template.packed(np.zeros(14), MODEL)
  assert type(again['dense']) is Layer and type(again['more'][1]) is tuple
  assert again['more'][0].dtype == np.float64 and again['more'][1][0].shape == ()
  ordered = collections.OrderedDict(b=array(1), a=array(2))
  template = structures.Template.of(ordered)
  # Keys count, not their order.
  flat = template.flat({'a': array(2), 'b': np.float32([9])})
  assert [a.tolist() for a in flat] == [[[9.0]], [[0.0, 1.0]]]
  assert list(template.packed(np.zeros(3), ordered)) == ['b', 'a']
  assert type(template.packed(np.zeros(3), ordered)) is collections.OrderedDict
  # NumPy's own scalars are arrays without a dimension.
  assert structures.Template.of(np.float32(1)).size == 1


@made.cases(
  'template, message',
  ({'a': [1.0]}, r"template\['a'\]\[0\] must be an array .* or tuple of them, got float"),
  ([np.zeros(2, np.int32)], r'template\[0\] must be float32 or float64, got int32'),
  ([np.zeros(2, np.float16)], r'template\[0\] must be float32 or float64, got float16'),
  ([], 'template must hold at least one coordinate'),
  ([np.zeros((0, 3))], 'template must hold at least one coordinate'),
  (None, 'template must be an array'),
)
def test_templates_that_will_not_do(template, message):
  with pytest.raises(ValueError, match=f'^{message}'):
    structures.Template.of(template)


@pytest.mark.parametrize('update, message', [
  ({'b': array(2)}, r"update must be a mapping of 'a', 'c', as in the template; got 'b'"),
  ([array(2)], r"update must be a mapping of 'a', 'c', as in the template; got list"),
  ({'a': array(2), 'c': [array(1)]}, r"update\['c'\] must be a list or tuple of 2.*; got 1"),
  ({'a': array(2), 'c': array(2)},
   r"update\['c'\] must be a list or tuple of 2.*; got float32, .2,."),
  ({'a': array(3), 'c': [array(1), array(1)]},
   r"update\['a'\] must be float32 of shape \[2\], as in the template; got .* of shape \[3\]"),
  ({'a': array(2, dtype=np.float64), 'c': [array(1), array(1)]},
   r"update\['a'\] must be float32 of shape \[2\], as in the template; got float64"),
  ({'a': np.ma.array(array(2)), 'c': [array(1), array(1)]}, r"update\['a'\] must have no mask"),
  ({'a': array(2), 'c': [array(1), 'x']}, r"update\['c'\]\[1\] must be an array of NumPy"),
])  # fmt: skip
def test_updates_of_another_structure_are_refused_where_they_differ(update, message):
  template = structures.Template.of({'a': array(2), 'c': [array(1), array(1)]})
  with pytest.raises(ValueError, match=f'^{message}'):
    template.flat(update)
