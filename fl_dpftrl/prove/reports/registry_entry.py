"""The entry of a run in a registry of deployments, and a model card with its guarantee.

An entry has what may be published, and what operators say. Fields are those of the registry of
deployments (arXiv 2509.13509) and of NIST SP 800-226; the JSON schema is
docs/registry-entry.schema.json.
"""

import hashlib
import json
import os
import pathlib

import numpy as np

from fl_dpftrl import version
from fl_dpftrl.claims import run_claim
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.prove.auditing import run_audit
from fl_dpftrl.prove.replaying import assumption_sentences, certificates, publication, statements
from fl_dpftrl.prove.reports import page
from fl_dpftrl.support.files import durable, json_files
from fl_dpftrl.support.text import messages

_MARK = '<!-- fl_dpftrl '  # after a card
_SECTIONS = {
  'deployment': ('name', 'curator', 'use', 'product', 'licence', 'contact', 'published'),
  'model': ('delta_reason', 'deployment_model'),
  'data': ('data_domain', 'public_data', 'base_model', 'unprotected'),
  'practice': ('post_processing', 'composition', 'side_channels', 'access', 'retention', 'tuning'),
}
_TIERS = {'deployment': 1, 'model': 2, 'data': 3, 'practice': 3}
FACTS = tuple(name for names in _SECTIONS.values() for name in names)
"""Names of what an operator can say, each in a text."""

_LONGEST, _NUM_POINTS = 2000, 12  # characters of a fact; rounds of the curve


def read_facts(path: str | os.PathLike[str]) -> dict[str, str]:
  """Returns the facts of an operator's JSON file; ValueError for anything else in it."""
  facts = json_files.read(path)
  if not isinstance(facts, dict):
    raise ValueError(f'{path}: must be an object of facts, such as {{"curator": "…"}}')
  for name, text in facts.items():
    if name not in FACTS:
      raise ValueError(f'{path}: {messages.quoted(name, 40)} is no fact of docs/registry.md')
    if not (isinstance(text, str) and text.strip() and len(text) <= _LONGEST):
      raise ValueError(f'{path}: {name} must be a text of up to {_LONGEST} characters')
  return facts


def write_entry(
  path: str | os.PathLike[str],
  statement: statements.Statement,
  facts: dict[str, str],
  *,
  model: str | os.PathLike[str] | None = None,
  evidence: str | os.PathLike[str] | None = None,
  audit: run_audit.RunAudit | None = None,
) -> json_files.Object:
  """Writes the entry of a statement for everybody to read, and returns it.

  Args:
    path: JSON file.
    statement: of one run or several, reduced to what is publishable; a void one has no figures.
    facts: what the operator says, by the names of FACTS. A missing one lowers the tier.
    model: file of the released weights, whose digest the entry has.
    evidence: folder of the statement's evidence, whose certificate the entry cites if it proves the
      figure.
    audit: of the run by its canaries, which reads coins and releases; None for none.

  Raises:
    ValueError: for a run of secret draws, of which nothing is published.
  """
  content = _entry(statement.publishable(), facts)
  if model is not None:
    digest = {'sha256': _sha256(pathlib.Path(model))}
    content['subjects'] = [{'name': pathlib.Path(model).name, 'digest': digest}]
  if evidence is not None:
    content['proof'] = _proof(pathlib.Path(evidence, certificates.NAME), content['privacy'])
  if audit is not None and content['privacy']['epsilon'] is not None:
    content['audit'] = {
      'canaries': audit.num_canaries,
      'confidence': 1.0 - run_audit.SHOWN,
      'delta': audit.guarantee.delta,
      'lower_epsilon': audit.lower_epsilon,
      'noise_limit': audit.noise_limit,
      'rounds': audit.num_rounds,
      'released': audit.num_released,
    }
  text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + '\n'
  durable.write_durably(path, text.encode())
  return content


def _proof(path: pathlib.Path, privacy: json_files.Object) -> json_files.Object | None:
  """Returns what proves the figure of an entry: a certificate that the checker proved."""
  figures = json_files.read(path)['figures'] if path.exists() else []
  if privacy['epsilon'] is None or privacy['figure'] not in [f['name'] for f in figures]:
    return None
  return {
    'certificate_sha256': _sha256(path),
    'verdict': 'proved',
    'checker_sha256': _sha256(certificates.checker()),
  }


def _sha256(path: pathlib.Path) -> str:
  return hashlib.sha256(path.read_bytes()).hexdigest()


def _entry(public: statements.Statement, facts: dict[str, str]) -> json_files.Object:
  declared = public.declared
  is_planned = bool(public.planned and public.planned.holds)
  part = public.parts[-1 if is_planned else 0]
  is_void = bool(public.void_reason or part.guarantee.void_reason)
  lacking = [s for s, names in _SECTIONS.items() if not facts.keys() >= {*names}]
  said = {
    section: {name: facts[name] for name in names if name in facts} | {'said_by': 'operator'}
    for section, names in _SECTIONS.items()
  }
  figures = part.guarantee.to_json()
  return {
    'format': 'fl_dpftrl registry entry',
    'version': 1,
    'tier': min([3, *(_TIERS[section] - 1 for section in lacking)]),
    'missing': [name for name in FACTS if name not in facts],
    **said,
    'privacy': {
      'definition': 'approximate',
      **{name: None if is_void else figures[name] for name in ('epsilon', 'rho', 'mu')},
      'delta': public.delta,
      'figure': part.name,
      'sensitivity_kind': part.guarantee.sensitivity_kind,
      'adjacency': public.adjacency,
      'unit': public.unit,
      'group_size': public.group_size,
      'epsilon_if_planned_for': None if is_void or part is not declared else _curve(public),
    },
    'mechanisms': [
      {
        'family': run.strategy['family'],
        'strategy_sha256': run.strategy['sha256'],
        'noise_multiplier': run.claim.noise_multiplier,
        'clip_norm': run.claim.first_clip_norm,
        'participation': registry.to_json((is_planned and run.claim.participation) or run.schema),
        'arithmetic': run.claim.arithmetic.kind,
        'num_coordinates': run.claim.arithmetic.num_coordinates,
      }
      for run in public.runs
    ],
    'unprotected': ['which devices took part, and when', 'the participation log'],
    'assumptions': assumption_sentences.grouped(public, part.name),
    'claims': {
      'schema_kept': declared and declared.holds,
      'schema_recorded': all(run.schema_in_log for run in public.runs),
      'void': is_void,
      'runs': len(public.runs),
      'disjoint': public.disjoint,
    },
    'proof': None,
    'audit': None,
    'subjects': [],
    'made_by': f'fl_dpftrl {version.__version__}',
    'command': publication.command(public),
  }


def _curve(public: statements.Statement) -> list[list[float]] | None:
  """Returns (n, ε) of runs that were planned to end after n rounds, up to the declared number.

  None for several runs, and without an end, where ε is that of any number of rounds. A part of a
  run that went on has no such ε: what it released may have decided where it stopped.
  """
  claim, declared = public.runs[0].claim, public.declared
  if public.several or declared is None or declared.participation.num_rounds is None:
    return None
  terms = guarantees.Terms(public.deltas, public.adjacency, public.group_size)
  points = np.geomspace(1, claim.answers.num_rounds, _NUM_POINTS).round().astype(int).tolist()
  return [
    [n, run_claim.compose([claim], [claim.answers.within(n)], terms).epsilon()]
    for n in dict.fromkeys(points)
  ]


def check_card_path(path: str | os.PathLike[str]) -> None:
  """Raises ValueError for a file that is there, unless it is a card and nobody has changed it."""
  if os.path.exists(path):
    text = pathlib.Path(path).read_text('utf-8', errors='replace')
    if text != _marked(text.rpartition(_MARK)[0]):
      raise ValueError(
        f'model_card={path} has text that is not of this program; name another file, and copy it'
      )


def write_card(
  path: str | os.PathLike[str], entry: json_files.Object, entry_name: str | None = None
) -> None:
  """Writes a head in YAML, and sentences; ValueError for a file with text of somebody else.

  Args:
    path: Markdown file.
    entry: of a registry, as `write_entry` returns it.
    entry_name: name of the file of the entry, beside the card.
  """
  check_card_path(path)
  said = entry['deployment'] | entry['model'] | entry['data'] | entry['practice']
  text = page.render(
    'model_card.md',
    entry=entry,
    entry_name=entry_name,
    said={name: text for name, text in said.items() if name != 'said_by'},
    groups=assumption_sentences.GROUPS,
  )
  durable.write_durably(path, _marked(f'{text}\n').encode())


def _marked(text: str) -> str:
  return f'{text}{_MARK}{hashlib.sha256(text.encode()).hexdigest()} -->\n'
