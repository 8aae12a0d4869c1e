import tensorflow as tf

from tff_inprocess import speed


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
