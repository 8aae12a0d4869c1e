import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import made
from tff_inprocess import graphs, programs, speed


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


@made.cases(
  'work, is_compiled',
  (lambda x: tf.cast(x + x, tf.int64), True),
  (lambda x: tf.cast(tf.random.normal([2, 2]) + x, tf.int64), False),
  (lambda x: tf.cast(tf.matmul(x, x), tf.int64), False),
)
def test_xla_compiles_only_what_is_not_rewritten(work, is_compiled):
  of_server = tff.FederatedType(tff.TensorType(np.float32, [2, 2]), tff.SERVER)

  @tff.federated_computation(of_server)
  def computation(values):
    body = tf.function(work, jit_compile=True)
    return tff.federated_map(tff.tensorflow.computation(body, of_server.member), values)

  (stage,) = programs.build(computation).stages
  nodes = graphs.nodes(stage.server.function.graph.as_graph_def())
  assert any(node.attr['_XlaMustCompile'].b for node in nodes) == is_compiled
