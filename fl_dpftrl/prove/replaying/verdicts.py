"""The verdict on a claimed ε: held or not, by which figure, and on what it rests."""

import dataclasses
import itertools
import json
import math
import pathlib
from typing import Any, NamedTuple

from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.prove.replaying import assumption_sentences
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages, roundings

Statement = Any
"""A `statement.Statement`, which asks for its verdict here."""

QUESTIONS: list[json_files.Object] = json.loads(
  pathlib.Path(__file__).with_name('questions.json').read_text('utf-8')
)
"""The questions of docs/report.md: how the assumptions begin that rest on the answer, and what
would void a guarantee that has such an assumption."""

_ANOTHER_RUN = 'another run had the same devices: its loss adds to this one'
_SEEN_DRAWS = 'somebody saw the draws, or the log, which tells them'


class ClaimedEpsilon(NamedTuple):
  """A claim that ε at δ is at most a number."""

  epsilon: float
  delta: float

  @classmethod
  def parse(cls, text: str) -> 'ClaimedEpsilon':
    """Returns the claim that ε@δ spells, such as 3@1e-8; ValueError for others."""
    try:
      epsilon, delta = map(float, text.split('@'))
      checks.positive(epsilon=epsilon)
      gaussian.check_delta(delta)
    except ValueError:
      raise ValueError(
        f'claim={messages.one_line(text, 60)} must be ε@δ, as 3@1e-8: ε above 0, δ between 0 and 1'
      ) from None
    return cls(epsilon, delta)

  def __str__(self) -> str:
    return f'ε ≤ {roundings.exact(self.epsilon)} at δ = {roundings.exact(self.delta)}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
  """A statement's answer to a claimed ε.

  Attributes:
    figure: name of the guarantee that decides: of what was declared or drawn, else 'worst_case'.
    epsilon: its ε at the claimed δ; None where none is proven.
    reason: why nothing is guaranteed, or what was declared was not kept; None if neither.
    assumes: sentences on which the figure rests, by group.
    void_if: what would void it, in words.
  """

  claim: ClaimedEpsilon
  figure: str
  epsilon: float | None
  reason: str | None
  assumes: dict[str, list[str]]
  void_if: list[str]

  @property
  def held(self) -> bool:
    """True if the claim is borne out, up to what processors round differently."""
    most = self.claim.epsilon * (1.0 + json_files.ROUNDING)
    return self.epsilon is not None and self.epsilon <= most

  def to_json(self) -> json_files.Object:
    """Returns the verdict."""
    return {'held': self.held, **vars(self), 'claim': self.claim._asdict()}

  def __str__(self) -> str:
    if self.reason:
      return f'{self.claim} is not held: {self.reason}'
    shown = roundings.UNBOUNDED if self.epsilon is None else roundings.up(self.epsilon)
    word, figure = 'held' if self.held else 'not held', self.figure.replace('_', ' ')
    return f'{self.claim} is {word}, by {figure}, whose ε is {shown}'


def verdict(statement: Statement, claim: ClaimedEpsilon) -> Verdict:
  """Returns the verdict of a statement on a claim; observed figures never decide it."""
  part = statement.planned or statement.parts[0]
  reason = statement.void_reason or statement.worst_case.void_reason
  reason = reason or (None if part.holds else part.broken)
  epsilon = math.inf if reason else part.guarantee.epsilon(claim.delta)
  assumes = assumption_sentences.grouped(statement, part.name)
  answered = [
    question['void']
    for question in QUESTIONS
    if any(s.startswith(tuple(question['sentences'])) for s in itertools.chain(*assumes.values()))
  ]
  drawn = _SEEN_DRAWS if part.name == 'amplified' else ''
  return Verdict(
    claim=claim,
    figure=part.name,
    epsilon=epsilon if epsilon < math.inf else None,
    reason=reason,
    assumes=assumes,
    void_if=[*filter(None, (*answered, drawn)), _ANOTHER_RUN],
  )


def to_quote(statement: Statement) -> str:
  """Returns which ε of a statement that is not void to quote, in words."""
  declared = statement.declared
  if not statement.rounds_may_follow:
    end = 'the end of a run' if statement.several else 'the end of the run'
    is_kept = declared is not None and declared.holds
    instead = 'quote what was declared instead' if is_kept else 'no figure may be quoted'
    is_over = declared is None or statement.num_rounds >= declared.participation.num_rows
    which = '' if is_over else ' of the rounds so far, to which rounds that follow add'
    drawn = statement.drawn
    if drawn and drawn.holds and drawn.participation.is_secret:  # As secret are b and k.
      which = f' to those who may see the log, and to others only {drawn.name}, of the stated draws'
    text = (
      f'the worst case{which}. If a release may have decided who took part, or {end}, {instead}'
    )
  elif declared.participation.num_rounds is None:
    text = f'{declared.budget}: it is that of any number of rounds'
  else:
    text = (
      'what was declared: rounds may follow, and the worst case is only that of the rounds so far'
    )
  observed = ' What was observed is for these rounds only: it promises nothing in advance.'
  return f'Quote {text}.{observed if statement.observed else ""}'
