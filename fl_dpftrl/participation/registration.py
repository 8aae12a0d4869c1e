"""Registration of mechanisms and participations of a user's own."""

from typing import TypeVar

from fl_dpftrl.mechanisms import family_registry
from fl_dpftrl.participation import registry

_Class = TypeVar('_Class', bound=type)


def register(cls: _Class) -> _Class:
  """Adds a family, or a participation, which then works wherever a built-in one does.

  This is a class decorator. The class is a frozen dataclass with `family`, `strategy_matrix`
  and `noising_matrix`; its fields are the parameters in a strategy file. It need not inherit
  from `dpftrl.Strategy`: the defaults that it lacks are added to it. The registry belongs to the
  process: commands in another process know the family once they have imported its module.

  Args:
    cls: the family, or a participation as `MinSep` says. A registered one of the same module and
      name is replaced, as when a notebook defines it again.

  Raises:
    ValueError: if it is no frozen dataclass, lacks a name, C or N, has the name of another family,
      or needs no parameters and its N does not undo its C.
  """
  return registry.register(cls) if hasattr(cls, 'kind') else family_registry.register(cls)
