"""The claim of a run: all that its guarantee rests on, but for participation that happened.

A run never changes its claim: other noise is another run, and `compose` adds independent runs up.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from fl_dpftrl.claims import adaptive_clipping as adaptive
from fl_dpftrl.claims import canaries as canary_claims
from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.logs import claim_json, keys
from fl_dpftrl.mechanisms import base, sensitivities
from fl_dpftrl.mechanisms.files import documents, files
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import adjacencies, arithmetics, guarantees
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import durable, json_files
from fl_dpftrl.support.text import messages

NAME = 'claim.json'
"""Name of the claim's file in the folder of a run."""

_MOST_NAMES, _LONGEST = 1000, 200
_IDENTITY = re.compile('[0-9a-f]{32}')
_ANY = separations.MinSep(2**53)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
  """The claim of a run, made before its first round and never changed.

  The noise of a round is a row of N·Z, times the noise multiplier and the clip norm.

  Attributes:
    strategy: C; or its file or name, as `load_strategy` takes them.
    noise_multiplier: std(Z) / clip_norm; with adaptive clipping, that of updates and counts
      together. 0 without noise.
    clip_norm: L2 bound on an update, or the `AdaptiveClipping` of the run; None if it is not known.
    report_goal: updates that a round needs, the fixed divisor of the sum; None if not known.
    private_metrics: metrics of clients that are released beside the model, with noise, under the
      same guarantee; None without.
    participation: who may take part in which of all rounds that the run may have: a `MinSep`, or
      a scheme of draws; None if none was declared.
    arithmetic: the numbers that releases are made of.
    void_reason: why the run guarantees nothing, such as a known noise seed; None if it does.
    not_private_metrics: metrics that are computed from clients' data without the noise, by name.
    trusted_operations: operations that `check_process` does not pass, and whoever trained trusted.
    population: random name of the population whose budget the run draws on; None without one. Give
      the `Population` to the run, which writes its name here.
    canaries: made-up devices beside the cohorts; None without. Their ids follow from the run's
      identity, so that neither they nor a device can pass for the other.

  Raises:
    ValueError: for an attribute out of range, and for counts and metrics with so little noise that
      they would use up the guarantee.
  """

  strategy: base.Strategy
  noise_multiplier: float
  clip_norm: float | adaptive.AdaptiveClipping | None = None
  report_goal: int | None = None
  private_metrics: extra_coordinates.PrivateMetrics | None = None
  participation: Participation | None = None
  arithmetic: arithmetics.Arithmetic = arithmetics.Arithmetic()
  void_reason: str | None = None
  not_private_metrics: tuple[str, ...] = ()
  trusted_operations: tuple[str, ...] = ()
  population: str | None = None
  canaries: canary_claims.Canaries | None = None

  def __post_init__(self):
    keep = functools.partial(object.__setattr__, self)
    num_rounds = None
    if self.participation is not None:
      keep('participation', registry.resolved(self.participation))
      num_rounds = self.participation.num_rounds
    keep('strategy', files.resolved(self.strategy, num_rounds))
    if self.strategy.depends_on_num_rounds:
      raise ValueError(
        f'strategy: {self.strategy.family} depends on the number of rounds that were planned, and'
        ' a run may end early; give it num_rounds, or a file that has them, as `fl-dpftrl'
        ' optimize --output` writes'
      )
    checks.keep(self, checks.not_negative, 'noise_multiplier')
    if self.clip_norm is not None and not self.adaptive_clipping:
      checks.keep(self, checks.positive, 'clip_norm')
    if self.report_goal is not None:
      checks.keep(self, checks.whole, 'report_goal')
    update_noise_multiplier(self)  # Raises ValueError.
    if self.participation is not None:
      keep('participation', self.answers.for_claim(self.strategy))
      if self.answers.is_secret:  # No bound is known for what whole numbers add to draws.
        on_lattice = arithmetics.Arithmetic(kind=arithmetics.LATTICE)
        keep('arithmetic', self.arithmetic.and_then(on_lattice))
      if self.answers.num_rounds is None:
        self.answers.check(
          self.strategy, guarantees.Terms((), num_coordinates=self.arithmetic.num_coordinates)
        )
    if self.void_reason is not None and not isinstance(self.void_reason, str):
      raise ValueError(f'void_reason must be text, got {messages.quoted(self.void_reason)}')
    if self.population is not None and not _IDENTITY.fullmatch(str(self.population)):
      raise ValueError(
        f'population must be the name of one, got {messages.quoted(self.population)}'
      )
    if self.canaries is not None:
      checks.instance(canary_claims.Canaries, canaries=self.canaries)
      # Else they are not charged like any device. A replay may leave the schema of a run out.
      is_schema = self.participation is None or isinstance(self.participation, separations.MinSep)
      if not (is_schema and self.population is None and self.noise_multiplier):
        raise ValueError(canary_claims.NEED)
    for name in ('not_private_metrics', 'trusted_operations'):
      keep(name, _names(name, getattr(self, name)))

  @property
  def answers(self) -> Participation:
    """The participation, which answers for itself; any at all where none was declared."""
    return self.participation or _ANY

  @property
  def declared(self) -> Participation | None:
    """The participation to which devices keep; None where it is drawn."""
    return None if self.is_drawn else self.participation

  @property
  def is_drawn(self) -> bool:
    """True where participation is drawn, so that a round may have any number of devices."""
    return self.participation is not None and self.participation.is_drawn

  @property
  def adaptive_clipping(self) -> adaptive.AdaptiveClipping | None:
    """Rule of the clip norm after round 0; None if it is fixed."""
    rule = self.clip_norm
    return rule if isinstance(rule, adaptive.AdaptiveClipping) else None

  @property
  def first_clip_norm(self) -> float | None:
    """The clip norm of round 0; that of all rounds unless it is adaptive."""
    rule = self.clip_norm
    return rule.initial if isinstance(rule, adaptive.AdaptiveClipping) else rule

  def to_json(self) -> json_files.Object:
    """Returns all attributes; family and digest of the strategy stand for it."""
    rule, participation = self.adaptive_clipping, self.participation
    return {
      **described(self.strategy),
      'noise_multiplier': self.noise_multiplier,
      'clip_norm': self.clip_norm if rule is None else dataclasses.asdict(rule),
      'report_goal': self.report_goal,
      'private_metrics': self.private_metrics and dataclasses.asdict(self.private_metrics),
      'participation': participation and registry.to_json(participation),
      'arithmetic': dataclasses.asdict(self.arithmetic),
      'void_reason': self.void_reason,
      'not_private_metrics': list(self.not_private_metrics),
      'trusted_operations': list(self.trusted_operations),
      'population': self.population,
      'canaries': self.canaries and dataclasses.asdict(self.canaries),
    }

  @classmethod
  def from_json(cls, document: Any, strategy: files.Given) -> 'Claim':
    """Returns the claim that `to_json` wrote; ValueError for others, and for another strategy."""
    if not isinstance(document, dict) or document.keys() != claim_json.FIELDS:
      raise ValueError(f'a claim must have {", ".join(sorted(claim_json.FIELDS))}')
    values, name = {**document, 'strategy': strategy}, 'strategy'
    try:
      for name, read in _READERS.items():
        values[name] = None if document[name] is None else read(document[name])
      name = 'arithmetic'
      values[name] = arithmetics.Arithmetic(**document[name])
      name = 'claim'
      claim = cls(**values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
      raise ValueError(f'{name}: {messages.one_line(error)}') from error
    for sentence in claim_json.differences(document, claim.to_json()):
      raise ValueError(sentence)
    return claim

  def to_metadata(self) -> dict[str, str]:
    """Returns the metadata of a log that state the claim, and its digest."""
    text = json.dumps(self.to_json(), sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {keys.CLAIM_KEY: text, keys.CLAIM_DIGEST_KEY: digest}

  def save(self, folder: str | pathlib.Path, run: str | None = None, *, begun: bool = True) -> None:
    """Writes the files of strategy and claim into the folder of a run, unless they are there.

    Args:
      folder: of the run.
      run: random identity of the run, in hexadecimal, as its log states it.
      begun: whether the run has rounds; the claim of another is replaced where it has none.

    Raises:
      ValueError: for a file of another claim, or run.
    """
    folder = pathlib.Path(folder)
    if begun and (folder / NAME).exists():
      claim_json.check_file(folder / NAME, self.to_json(), run)
    if not (folder / files.NAME).exists():
      # A strategy file has figures for some schema; without one, for a single round.
      has_end = self.declared and self.declared.num_rounds is not None
      schema = self.declared.schema if self.declared and has_end else separations.MinSep(1, 1)
      files.save_strategy(folder / files.NAME, self.strategy, schema=schema)
    if not (begun and (folder / NAME).exists()):
      document = self.to_json() | ({} if run is None else {claim_json.RUN: run})
      content = json.dumps(document, indent=2) + '\n'
      durable.write_durably(folder / NAME, content.encode(), private=True)

  def guarantee(
    self,
    participation: Participation,
    delta: float | Sequence[float],
    *,
    adjacency: str = adjacencies.ZERO_OUT,
  ) -> guarantees.Guarantee:
    """Returns the guarantee of any device of a participation, such as a schema, in the run."""
    return compose([self], [registry.resolved(participation)], guarantees.Terms(delta, adjacency))


def update_noise_multiplier(claim: Claim) -> float:
  """Returns std(Z) / clip_norm of updates, which counts and metrics beside them raise."""
  groups = adaptive.groups(
    claim.clip_norm, claim.private_metrics, claim.noise_multiplier, claim.report_goal or 1
  )
  return extra_coordinates.update_noise_multiplier(claim.noise_multiplier, groups)


def compose(
  claims: Sequence[Claim],
  schemes: Sequence[Participation],
  terms: guarantees.Terms,
  disjoint: bool = False,
) -> guarantees.Guarantee:
  """Returns the guarantee of the participations of one run, or of several together.

  Args:
    disjoint: whether nobody is in two runs, so that the guarantee is that of the costliest one.
  """
  if disjoint:
    every = [compose([run], [scheme], terms) for run, scheme in zip(claims, schemes, strict=True)]
    worst = max(every, key=lambda guarantee: guarantee.mu)
    added = [guarantee.rounding for guarantee in every]
    most = arithmetics.Rounding(mu=max(r.mu for r in added), chance=max(r.chance for r in added))
    if unit := noise_unit(claims):
      value = math.nextafter(worst.sensitivity * (unit / worst.noise_multiplier), math.inf)
      worst = dataclasses.replace(worst, sensitivity=value, noise_multiplier=unit)
    return dataclasses.replace(worst, rounding=most)
  num_rounds = [participation.num_rows for participation in schemes]
  if len(claims) == 1:  # Its own answer, which may be more than that of its sensitivity.
    (claim,) = claims
    terms = dataclasses.replace(terms, num_coordinates=claim.arithmetic.num_coordinates)
    return schemes[0].guarantee(claim.strategy, claim.noise_multiplier, terms)
  return spending(claims, num_rounds, terms)(worst_case(claims, schemes), terms)


def spending(
  claims: Sequence[Claim],
  num_rounds: Sequence[int],
  terms: guarantees.Terms,
  most: int | None = None,
) -> Callable[..., guarantees.Guarantee]:
  """Returns the function from the sensitivity to one device's updates to what runs spend on it.

  It takes the sensitivity in units of `noise_unit` and, for several devices that each
  have it, the terms; else they are those of one device. Nothing is guaranteed if any run has no
  noise.

  Args:
    num_rounds: rounds of each run. Others are those of `compose`.
    most: streams that one device takes part in at most.
  """
  adjacencies.check(terms.adjacency, terms.group_size)
  multiplier = noise_unit(claims)
  single = dataclasses.replace(terms, group_size=1)
  added = rounding(claims, num_rounds, most)
  return lambda sensitivity, terms=single: guarantees.Guarantee.of(
    sensitivity, terms, noise_multiplier=multiplier, rounding=added
  )


def worst_case(
  claims: Sequence[Claim], schemes: Sequence[Participation]
) -> sensitivities.Sensitivity:
  """Returns the sensitivity of any device of these participations, in units of `noise_unit`."""
  unit, squares, kinds = noise_unit(claims), [], []
  for claim, participation in zip(claims, schemes, strict=True):
    value, kind = participation.worst_case(claim.strategy)
    weight = unit / claim.noise_multiplier if unit else 1.0
    squares.append((weight * value) ** 2)
    kinds.append(kind)
  if len(kinds) == 1:  # Squaring and taking the root would round.
    return sensitivities.Sensitivity(value, kind)
  square = math.fsum(squares)  # Exactly, so that the order of runs does not matter.
  return sensitivities.Sensitivity(math.sqrt(square), min(kinds, key=_KINDS.index))


def noise_unit(claims: Sequence[Claim]) -> float:
  """Returns the noise multiplier in whose units joint sensitivities are; 0 if any run has none.

  It is the largest one, so that the order of runs does not matter.
  """
  multipliers = [claim.noise_multiplier for claim in claims]
  return max(multipliers) if all(multipliers) else 0.0


def rounding(
  claims: Sequence[Claim], num_rounds: Sequence[int], most: int | None = None
) -> arithmetics.Rounding:
  """Returns what whole numbers add to the guarantee, where all runs are covered and have noise."""
  together = together_arithmetic(claims)
  if together.num_coordinates is None or not all(claim.noise_multiplier for claim in claims):
    return arithmetics.Rounding()
  streams = [(claim.strategy, n) for claim, n in zip(claims, num_rounds, strict=True)]
  return arithmetics.rounding(streams, together.num_coordinates, most)


def together_arithmetic(claims: Sequence[Claim]) -> arithmetics.Arithmetic:
  """Returns what holds for the releases of all runs together."""
  parts = (claim.arithmetic for claim in claims)
  return functools.reduce(arithmetics.Arithmetic.and_then, parts)


def described(strategy: base.Strategy) -> json_files.Object:
  """Returns what a claim says of its strategy: family and digest."""
  return {'strategy': {'family': strategy.family, 'sha256': documents.strategy_digest(strategy)}}


def void_reason(noise_multiplier: float, noise_seed: int | None) -> str | None:
  """Returns why a run's noise guarantees nothing; None if it does."""
  if not noise_multiplier:
    return 'noise is off (noise_multiplier 0)'
  if noise_seed is not None:
    return 'the noise seed was given, so whoever knows it can remove the noise'
  return None


_KINDS = (sensitivities.LOWER_BOUND, sensitivities.UPPER_BOUND, sensitivities.EXACT)
# Readers of the attributes whose JSON is not the value itself, where there is one.
_READERS: dict[str, Callable[[Any], Any]] = {
  'clip_norm': lambda norm: adaptive.AdaptiveClipping(**norm) if isinstance(norm, dict) else norm,
  'private_metrics': lambda document: extra_coordinates.PrivateMetrics(**document),
  'canaries': lambda document: canary_claims.Canaries(**document),
  'participation': registry.from_json,
}


def _names(attribute: str, names: Any) -> tuple[str, ...]:
  is_list = isinstance(names, (list, tuple)) and len(names) <= _MOST_NAMES
  if not is_list or not all(isinstance(name, str) and 0 < len(name) <= _LONGEST for name in names):
    raise ValueError(f'{attribute} must be up to {_MOST_NAMES} names, got {messages.quoted(names)}')
  return tuple(names)
