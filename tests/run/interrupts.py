"""Interrupts at a chosen instruction, where Python lets a Ctrl-C in."""

import dis
import functools
import sys
import types
from collections.abc import Callable

# Python looks for signals at the start of a function, after a call, and at the end of a loop.
_LETS_IN = ('CALL', 'RESUME', 'JUMP_BACKWARD')
_FILES = ('/fl_dpftrl/', 'contextlib.py')  # Python's own conditions lose a lock to one.


@functools.lru_cache(None)
def _places(code: types.CodeType) -> frozenset[int]:
  """Returns the offsets of the instructions before which an interrupt may come."""
  instructions = list(dis.get_instructions(code))
  pairs = zip(instructions, instructions[1:], strict=False)
  return frozenset(after.offset for this, after in pairs if this.opname.startswith(_LETS_IN))


class Interrupter:
  """Runs work, and raises KeyboardInterrupt at one of the places where a Ctrl-C may come.

  Args:
    at: which of the places, from 1, since `begin` was called; None for none.

  Attributes:
    count: number of places that were passed since `begin`.
    where: file, line and function of the interrupt; None without one.
  """

  def __init__(self, at: int | None = None):
    self._at, self._is_counting = at, False
    self._stepping = functools.lru_cache(None)(self._stepped)  # For opcodes, which are many.
    self.count, self.where = 0, None

  def begin(self) -> None:
    """Starts to count."""
    self._is_counting = True

  def run(self, work: Callable[[], object]) -> None:
    """Runs work to its end, or to the interrupt."""
    previous = sys.gettrace()
    sys.settrace(self._called)
    try:
      work()
    except KeyboardInterrupt:
      pass
    finally:
      sys.settrace(previous)

  def _called(self, frame, event, argument):
    code = frame.f_code
    if not (self._is_counting and any(part in code.co_filename for part in _FILES)):
      return None
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return self._stepping(code)

  def _stepped(self, code: types.CodeType) -> Callable:
    """Returns the function that is called at each opcode of some code."""
    places, at = _places(code), self._at

    def stepped(frame, event, argument):
      if event == 'opcode' and frame.f_lasti in places:
        self.count += 1
        if self.count == at:
          self.where = (code.co_filename.rpartition('/')[2], frame.f_lineno, code.co_name)
          sys.settrace(None)
          raise KeyboardInterrupt
      return stepped

    return stepped
