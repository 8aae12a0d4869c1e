"""Calls of a tracker's library in a thread of its own, with a time limit."""

import queue
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

SECONDS = 8.0
"""Longest wait for a call; without a network, libraries try for minutes."""

_Result = TypeVar('_Result')
_Call = tuple[futures.Future, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Apart:
  """Makes calls one after another; those that are late go on, and no program waits for them."""

  def __init__(self, library: str):
    self._library = library
    self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
    self._last: futures.Future | None = None
    threading.Thread(target=_make, args=(self._calls,), name=library, daemon=True).start()

  def __call__(self, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    """Returns what the function returns; TimeoutError if it takes longer, or waits for others."""
    is_late = self._last is not None and not self._last.done()
    self._last = future = futures.Future[_Result]()
    self._calls.put((future, function, args, kwargs))
    try:
      return future.result(0.0 if is_late else SECONDS)
    except TimeoutError:
      if future.done():
        raise
      raise TimeoutError(
        f'{self._library} does not answer within {SECONDS:g} s; is there a network?'
      ) from None


def _make(calls: queue.SimpleQueue[_Call]) -> None:
  while True:
    future, function, args, kwargs = calls.get()
    try:
      future.set_result(function(*args, **kwargs))
    except BaseException as error:
      future.set_exception(error)
    del future, function, args, kwargs
