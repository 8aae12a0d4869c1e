"""Optimisation problems of the benchmark."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """Optimisation problem in the terms of `fl-dpftrl optimize`.

  Attributes:
    group: kind of the case, for selection.
    mechanism: family of strategies.
    num_rounds: n.
    min_sep: b.
    max_participations: k.
    objective: 'rms' or 'max'.
    num_bands: number of bands of banded families; None for others.
    num_buffers: number of buffers of blt, 0 to choose; None for others.
    timeout: time limit of a process, in seconds.
    repeats: maximum number of useful runs of each side.
  """

  group: str
  mechanism: str
  num_rounds: int
  min_sep: int = 1
  max_participations: int = 1
  objective: str = 'rms'
  num_bands: int | None = None
  num_buffers: int | None = None
  timeout: float = 600.0
  repeats: int = 100

  @property
  def name(self) -> str:
    """Name of the case, such as blt-n2052-b342-k6-max-4buffers."""
    size = ''
    if self.num_bands is not None:
      size = f'-{self.num_bands}bands'
    elif self.num_buffers is not None:
      size = f'-{self.num_buffers or "choose"}buffers'
    return (
      f'{self.mechanism}-n{self.num_rounds}-b{self.min_sep}'
      f'-k{self.max_participations}-{self.objective}{size}'
    )


def _blt(n: int, b: int, k: int, objective: str, buffers: int, **kwargs) -> Case:
  return Case(
    group='blt',
    mechanism='blt',
    num_rounds=n,
    min_sep=b,
    max_participations=k,
    objective=objective,
    num_buffers=buffers,
    **kwargs,
  )


def _banded(mechanism: str, n: int, bands: int, k: int = 1, **kwargs) -> Case:
  return Case(
    group=mechanism,
    mechanism=mechanism,
    num_rounds=n,
    min_sep=bands if k > 1 else 1,
    max_participations=k,
    num_bands=bands,
    **kwargs,
  )


CASES = (
  *(
    _blt(2052, 342, 6, objective, buffers)
    for objective in ('max', 'rms')
    for buffers in (2, 3, 4, 5)
  ),
  *(_blt(2052, 342, 6, objective, 0, repeats=3) for objective in ('max', 'rms')),
  *(
    _blt(n, b, k, objective, 4)
    for n, b, k in ((2000, 1, 1), (4000, 400, 5))
    for objective in ('max', 'rms')
  ),
  _blt(100_000, 1000, 10, 'max', 4, repeats=1, timeout=1800.0),
  _banded('banded_toeplitz', 2052, 342, 6),
  _banded('banded_toeplitz', 16_384, 16),
  _banded('banded', 1024, 32),
  Case(group='dense', mechanism='dense', num_rounds=512),
)


def select(words: list[str]) -> list[Case]:
  """Returns the cases whose group or name contains a word; all without words.

  Raises:
    ValueError: if no case contains a word.
  """
  for word in words:
    if not any(word == c.group or word in c.name for c in CASES):
      raise ValueError(
        f'no case is called {word!r}; use'
        f' {", ".join(sorted({c.group for c in CASES}))}, or names such as'
        f' {CASES[0].name}'
      )
  return [c for c in CASES if not words or any(w == c.group or w in c.name for w in words)]
