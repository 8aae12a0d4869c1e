"""Graph code compares tensors with tf.equal: in TFF's graphs, == is identity."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
GRAPH_CODE = sorted(
  path
  for pattern in ('noise/graph.py', 'noise/stream.py', 'noise/randomness.py', 'aggregators/*.py')
  for path in (ROOT / 'fl_dpftrl').glob(pattern)
)
_REFUSED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
# Facts of a tensor that are known when the graph is built.
_STATIC = {'dtype', 'shape', 'rank', 'size'}


def comparisons_of_tensors(source: str) -> list[int]:
  """Lines that compare what a function computed with tf, or was given inside."""
  found = set()
  tree = ast.parse(source)
  outer = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
  for function in outer:
    inside = [
      n
      for n in ast.walk(function)
      if isinstance(n, (ast.FunctionDef, ast.Lambda)) and n is not function
    ]
    tensors = {a.arg for f in inside for a in f.args.args}
    for _ in range(3):  # Names of names of names.
      for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _is_tensor(node.value, tensors):
          tensors |= {
            n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)
          }
    for node in ast.walk(function):
      if isinstance(node, ast.Compare) and any(isinstance(op, _REFUSED) for op in node.ops):
        if any(_is_tensor(s, tensors) for s in (node.left, *node.comparators)):
          found.add(node.lineno)
  return sorted(found)


def _is_tensor(node: ast.AST, tensors: set[str]) -> bool:
  if isinstance(node, ast.Attribute) and node.attr in _STATIC:
    return False
  if isinstance(node, ast.Name):
    return node.id in tensors
  if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
    root = node.func
    while isinstance(root, ast.Attribute):
      root = root.value
    if isinstance(root, ast.Name) and root.id == 'tf':
      return 'TensorSpec' not in ast.unparse(node.func)
  if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Subscript)):
    parts = (getattr(node, name, None) for name in ('left', 'right', 'operand', 'value'))
    return any(_is_tensor(part, tensors) for part in parts if part is not None)
  return False


@pytest.mark.parametrize('path', GRAPH_CODE, ids=lambda path: f'{path.parent.name}/{path.stem}')
def test_no_tensors_are_compared_by_identity(path):
  lines = comparisons_of_tensors(path.read_text())
  assert not lines, f'{path}: lines {lines}: use tf.equal or tf.reduce_any'


def test_the_lint_sees_what_it_is_for():
  source = """
def make(limit):
  def next_fn(z, t):
    top = tf.reduce_max(t)
    whole = tf.cast(t, tf.int64) == top
    if t != limit or z.dtype != tf.float32 or limit == 3 or top + 1 in [2]:
      return whole
"""
  assert comparisons_of_tensors(source) == [5, 6]
  assert not comparisons_of_tensors(
    source.replace('==', '<').replace('t !=', '3 !=').replace('top + 1 in [2]', 'limit')
  )
