"""Certificates: what the checker beside the package needs to prove the figures of a statement.

A certificate is JSON, with floats as text in hexadecimal. `checker/prove.py` reads it in a process
of its own; neither imports anything of the other.
"""

import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import fl_dpftrl
from fl_dpftrl.claims import run_claim
from fl_dpftrl.mechanisms import base, schemas
from fl_dpftrl.participation.accounting import adjacencies, arithmetics
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, per_units
from fl_dpftrl.prove.replaying import statement_parts, statements
from fl_dpftrl.support.files import json_files

NAME = 'certificate.json'
"""Name of the certificate's file in a folder of evidence."""

_MOST_NUMBERS, _SECONDS = 10**6, 120
_BOUND = 'its sensitivity is by a bound that the checker does not know'
_SIZES = 'disjoint runs differ in coordinates, of which the checker takes the most for each'


class Certified(NamedTuple):
  """A certificate with its proven figures, None without any, and why others are not proven."""

  document: json_files.Object | None
  not_proved: tuple[str, ...]


class UnknownProof(Exception):
  """Why a figure has no certificate, in words."""


def certified(statement: statements.Statement) -> Certified:
  """Returns the certificate of a statement's figures that the checker proves."""
  figures, not_proved = list[json_files.Object](), list[str]()
  planned = statement.planned
  for part in statement.parts:
    if planned and part is not planned and part.guarantee is planned.guarantee:
      continue  # Of a run without an end, both are one.
    try:
      document = _document(statement, part)
      holds, lines = proof_of(json.dumps(document, default=str))  # Of a family of a user's own.
      if not holds:  # Digits would differ between processors.
        _, _, reason = ''.join(lines[:2]).partition('not proved: ')
        sizes = {run.claim.arithmetic.num_coordinates for run in statement.runs}
        differ = statement.disjoint and len(sizes) > 1 and None not in sizes
        why_larger = _SIZES if differ else _BOUND
        raise UnknownProof(why_larger if reason.startswith('ε = ') else reason)
      figures += document['figures']
    except UnknownProof as why:
      not_proved.append(f'{part.name}: {why}')
  return Certified({**document, 'figures': figures} if figures else None, tuple(not_proved))


@functools.lru_cache(maxsize=64)
def proof_of(content: str) -> tuple[bool, tuple[str, ...]]:
  """Returns `prove` of the content of a certificate."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, NAME)
    path.write_text(content, 'utf-8')
    return prove([path])


def prove(paths: Sequence[pathlib.Path]) -> tuple[bool, tuple[str, ...]]:
  """Runs the checker on files or folders; returns whether all is proved, and its lines."""
  command = [sys.executable, '-I', '-S', '-X', 'utf8', *map(str, [checker(), *paths])]
  try:
    done = subprocess.run(command, capture_output=True, encoding='utf-8', timeout=_SECONDS)
  except subprocess.TimeoutExpired:
    return False, (f'not proved: it takes more than {_SECONDS} seconds',)
  return not done.returncode, tuple((done.stdout + done.stderr).splitlines())


def checker() -> pathlib.Path:
  """Returns the file of the checker."""
  package = pathlib.Path(fl_dpftrl.__file__).parent
  places = [folder / 'checker' / 'prove.py' for folder in (package, package.parent)]
  return places[not places[0].exists()]  # Installed, or beside the package.


def differences(path: pathlib.Path, document: json_files.Object | None) -> Iterator[str]:
  """Yields where a file is another certificate, but for digits in which processors differ."""
  stored = json_files.read(path) if path.exists() else None
  pattern = re.compile(r'"(-?0x[01]\.[0-9a-f]+p[+-]\d+)"')
  decimal = lambda match: repr(float.fromhex(match[1]))
  pair = [json.loads(pattern.sub(decimal, json.dumps(value))) for value in (stored, document)]
  yield from json_files.differences(path.name, *pair)


def _document(statement: statements.Statement, part: statement_parts.Part) -> json_files.Object:
  """Returns the certificate of one figure; UnknownProof where no proof is known."""
  planned, guarantee, d = statement.planned, part.guarantee, statement.arithmetic.num_coordinates
  participations = [run.schema for run in statement.runs]
  if statement.void_reason or guarantee.void_reason:
    raise UnknownProof('it is void')
  is_budget = planned and planned.is_of_population
  if part.name == 'observed' or (is_budget and part is not planned):
    raise UnknownProof('it follows from the rows of the log, of which a certificate has none')
  if planned and part is planned:
    if planned.participation.is_drawn or not planned.holds:
      raise UnknownProof('it does not hold, or is of draws, of which no proof is known')
    participations = [run.claim.answers for run in statement.runs]
  if is_budget:
    scale = statement.group_size * (2 if statement.adjacency == adjacencies.REPLACE_ONE else 1)
    square = (guarantee.sensitivity / guarantee.noise_multiplier / scale) ** 2
    runs: list[json_files.Object] = [{'noise_multiplier': (1.0).hex()}]
    entries = [{'kind': 'population', 'squared': square.hex(), 'noise_rows': 1}]
    entries[0]['rounding'] = (0.0).hex()  # Charges have it.
  else:
    claims = [run.claim for run in statement.runs]
    noise = [{'noise_multiplier': claim.noise_multiplier.hex()} for claim in claims]
    runs = [{'strategy': strategy_json(c.strategy), **n} for c, n in zip(claims, noise)]
    entries = [_entry(c, p, d is not None) for c, p in zip(claims, participations)]
  points = [{'epsilon': guarantee.epsilon(delta), 'delta': delta} for delta in guarantee.deltas]
  guarantees = [{name: float(x).hex() for name, x in point.items()} for point in points]
  return {
    'format': 'fl_dpftrl certificate',
    'version': 1,
    'adjacency': statement.adjacency,
    'group_size': statement.group_size,
    'num_coordinates': d,
    'disjoint': statement.disjoint,
    'runs': runs,
    'figures': [{'name': part.name, 'participations': entries, 'guarantees': guarantees}],
  }


def _entry(
  claim: run_claim.Claim, participation: Participation, is_covered: bool
) -> json_files.Object:
  """Returns the participation of one run in a figure."""
  inner: Any = participation
  max_rows = 1
  if isinstance(inner, per_units.PerUnit):
    max_rows, inner = inner.max_rows, inner.participation
  entry: json_files.Object = {'noise_rows': participation.num_rows}
  if isinstance(inner, loss_budgets.LossBudget):
    entry |= {'kind': 'loss_budget', 'squared': inner.square(claim.strategy).hex()}
  elif not isinstance(inner, schemas.Schema):
    raise UnknownProof('its participation is a rule of its own, which the checker does not know')
  else:
    entry |= {'kind': 'min_sep', **inner.numbers, 'max_rows': max_rows}
  if is_covered:
    per_root, _ = arithmetics.stream_factors(claim.strategy, participation.num_rows)
    entry['rounding'] = float(per_root).hex()
  return entry


def strategy_json(strategy: base.Strategy) -> json_files.Object:
  """Returns family and parameters of a strategy, as certificates have them."""
  parameters = strategy.parameters()
  if sum(np.size(value) for value in parameters.values()) > _MOST_NUMBERS:
    raise UnknownProof('its strategy has too many numbers')
  return {'family': strategy.family, **{name: _text(value) for name, value in parameters.items()}}


def _text(value: Any) -> Any:
  if isinstance(value, base.Strategy):
    return strategy_json(value)
  if isinstance(value, (list, tuple, np.ndarray)):
    return [_text(part) for part in (value.tolist() if isinstance(value, np.ndarray) else value)]
  return value.hex() if isinstance(value, float) else value
