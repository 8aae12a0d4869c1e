"""Standard streams that take all that a program prints, whatever their encoding is."""

import codecs
import os
import sys

_HANDLER = 'fl_dpftrl.spelled'
# What stands for a character that an encoding lacks; others are escaped.
_PAIRS = (
  'ε=epsilon δ=delta μ=mu ρ=rho σ=sigma θ=theta β=beta λ=lambda ω=omega Σ=sum −=- ≤=<= ≥=>= …=...'
  ' ×=x ·=* ±=+- ∞=inf ²=^2 ᵀ=^T √=sqrt ‖=||'
)
_SPELLED = {pair[0]: pair[2:] for pair in _PAIRS.split()}


def prepare() -> None:
  """Opens standard streams that are closed as nothing, and spells what their encoding lacks."""
  for number in range(3):
    try:
      os.fstat(number)
    except OSError:  # A file that is opened next would be taken for the stream.
      os.open(os.devnull, os.O_RDWR)
  codecs.register_error(_HANDLER, _spelled)
  for number, name in enumerate(('stdout', 'stderr'), 1):
    if getattr(sys, name) is None:
      setattr(sys, name, open(number, 'w', encoding='utf-8', closefd=False))  # noqa: SIM115
    getattr(sys, name).reconfigure(errors=_HANDLER)


def _spelled(error: UnicodeError) -> tuple[str, int]:
  if not isinstance(error, UnicodeEncodeError):
    raise error
  characters = error.object[error.start : error.end]
  escaped = lambda c: c.encode('ascii', 'backslashreplace').decode()
  return ''.join(_SPELLED.get(c) or escaped(c) for c in characters), error.end
