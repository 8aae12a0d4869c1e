"""Loops of TensorFlow 1, which are nodes among the others of a graph.

What is between a loop's entrances and its exits is in one frame, and nodes of a frame take
inputs of the same frame alone.
"""

from typing import Any

# Each names its frame; no two loops of a graph may have one name.
ENTRANCES = ('Enter', 'RefEnter')
_EXITS = ('Exit', 'RefExit')
_CONDITION = 'LoopCond'


class Loops:
  """The loops among nodes.

  Args:
    nodes: of a graph or function; those added later are not looked at.
  """

  def __init__(self, nodes: Any):
    self._nodes = {node.name: node for node in nodes}
    self.entrances = {node.attr['frame_name'].s: node for node in nodes if node.op in ENTRANCES}
    self._conditions = [node for node in nodes if node.op == _CONDITION]

  def around(self, node: Any) -> bytes | None:
    """Returns the frame that a node is in; None outside of all loops."""
    if not self.entrances:
      return None
    left = 0  # Loops that are between the node and its first input.
    while node is not None:
      if node.op in ENTRANCES:
        if not left:
          return node.attr['frame_name'].s
        left -= 1
      elif node.op in _EXITS:
        left += 1
      # The first input of a merge is the one from outside the loop.
      node = self.source(node)
    return None

  def source(self, node: Any) -> Any:
    """Returns the node of the first input; None where there is none."""
    if not node.input:
      return None
    return self._nodes.get(node.input[0].lstrip('^').split(':')[0])

  def condition(self, frame: bytes) -> Any:
    """Returns the node that says whether the loop goes on."""
    return next(node for node in self._conditions if self.around(node) == frame)
