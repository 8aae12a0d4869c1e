import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from tff_inprocess import speed

FLOATS = tff.types.TensorType(np.float32, [None, None])


@tff.tensorflow.computation(FLOATS, FLOATS)
def all_products(a, b):
  by_function = tf.function(lambda x, y: tf.matmul(x, y, transpose_b=True))
  return (
    tf.matmul(a, b, transpose_a=True),
    tf.matmul(a, b, transpose_a=True, transpose_b=True),
    by_function(a, b),
    tf.matmul(tf.cast(a, tf.float64), tf.cast(b, tf.float64), transpose_b=True),
  )


@pytest.mark.parametrize('size', [1, 7, 200])
def test_products_are_right(size):
  generator = np.random.default_rng(size)
  a, b = generator.normal(size=(2, size, size)).astype(np.float32)
  with tff.framework.get_context_stack().install(tff_inprocess.InProcessContext()):
    found = all_products(a, b)
  for one, expected in zip(found, (a.T @ b, a.T @ b.T, a @ b.T, a @ b.T), strict=True):
    np.testing.assert_allclose(one, expected, atol=1e-5 * size)
  assert found[3].dtype == np.float64


def graph():
  @tf.function(input_signature=[tf.TensorSpec([2, 2])])
  def inner(x):
    return tf.matmul(x, x, transpose_b=True)

  with tf.Graph().as_default() as found:
    x = tf.compat.v1.placeholder(tf.float32, [2, 2])
    inner(tf.matmul(x, x))
    tf.matmul(tf.cast(x, tf.float64), tf.cast(x, tf.float64))
  return found.as_graph_def()


def kinds(rewritten):
  nodes = [*rewritten.node, *(n for f in rewritten.library.function for n in f.node_def)]
  return sorted((n.op, n.attr['T'].type) for n in nodes if 'MatMul' in n.op)


def test_float32_alone_is_rewritten_and_only_where_the_kernel_is(monkeypatch):
  double, single = tf.float64.as_datatype_enum, tf.float32.as_datatype_enum
  rewritten = graph()
  speed.rewrite_products(rewritten)
  if speed._attributes() is not None:
    assert kinds(rewritten) == [('MatMul', double), *[('_MklMatMul', single)] * 2]
  monkeypatch.setattr(speed, '_attributes', lambda: None)
  left = graph()
  speed.rewrite_products(left)
  assert kinds(left) == [*[('MatMul', single)] * 2, ('MatMul', double)]
