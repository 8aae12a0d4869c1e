"""Assumptions on which the figures of a statement rest: the one list of their sentences.

Every sentence follows from facts that a statement states, and from nothing else. Whoever has a
statement can therefore compute its assumptions again, and see which are missing and which were
added. A new assumption is a fact in `run_facts.RunFacts`, and a sentence here.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from fl_dpftrl.logs import id_columns
from fl_dpftrl.participation.accounting import adjacencies, arithmetics, guarantees
from fl_dpftrl.prove.replaying import participation_sentences, run_facts, statement_parts

Statement = Any
"""A `statement.Statement`, which asks for its assumptions here."""

_ARITHMETIC = {
  arithmetics.COVERED: (
    'the guarantee covers every digit of the releases: as the log states, updates and noise were'
    ' whole numbers, and the noise was drawn without rounding error, by AES-256 from a secret seed;'
    ' that nobody tells AES-256 from random bits is assumed, and an advantage there adds to δ'
  ),
  arithmetics.LATTICE: (
    'updates and noise were whole numbers, as the log states, but the noise was drawn from rounded'
    ' numbers: the guarantee is that of noise without rounding error, from secret bits'
  ),
  arithmetics.NOT_COVERED: (
    'the guarantee is that of numbers with all their digits: computers round them, and what the'
    ' last digits of the released numbers show is not covered'
  ),
}


LOG, CODE, OPERATOR = 'log', 'code', 'operator'
GROUPS = {
  LOG: 'what the log shows',
  CODE: "what the run's code is trusted for",
  OPERATOR: 'what only the operator can say',
}
"""Groups of assumptions, by who can answer for them."""

ALL, NO_FIGURE = 'all', 'none'


class Assumption(NamedTuple):
  """A sentence of a group, on which a figure rests: a part of a statement by name, or ALL."""

  group: str
  sentence: str
  figure: str = ALL


def listed(statement: Statement) -> list[Assumption]:
  """Returns all assumptions in their order."""
  runs, planned = statement.runs, statement.planned
  group_size = statement.group_size
  is_of_population = planned is not None and planned.is_of_population
  # Of the code of another system nothing is known.
  code = CODE if all(run.claim_in_log for run in runs) else OPERATOR
  worst_cases = ['worst case: the declared one, which holds for any rounds of the log']
  if not (planned and planned.is_endless):
    worst_cases = [
      f'worst case: {run.schema.assumption}{suffix}, as in the log' for suffix, run in _named(runs)
    ]
  result = [Assumption(LOG, sentence, 'worst_case') for sentence in worst_cases]
  if statement.observed is not None:
    sentence = 'observed: each device took part in the rounds that the log lists for it'
    result.append(Assumption(LOG, sentence, 'observed'))
  if planned:
    result += _planned(runs, planned, statement.adjacency, group_size)
  for start, reason in (
    ('NOTHING IS GUARANTEED', statement.worst_case.void_reason),
    ('THE GUARANTEE IS VOID', statement.void_reason),
  ):
    if reason:
      result.append(Assumption(LOG, f'{start}: {reason}', NO_FIGURE))
  clipping, noise, participation = guarantees.ASSUMPTIONS
  result += [Assumption(code, clipping), Assumption(code, noise)]
  result += [Assumption(OPERATOR, participation), *_of_releases(statement)]
  for sentence in adjacencies.assumptions(statement.adjacency):
    if statement.unit != 'device':
      sentence = sentence.replace('of one device', 'of all devices of one device')
      sentence = re.sub('(a|one) device', rf'\1 {statement.unit}', sentence)
    result.append(Assumption(OPERATOR, sentence))
  if group_size > 1:
    observed = '' if statement.observed is None else f', observed adds the {group_size} largest'
    sentence = (
      f'groups of {group_size} {statement.unit}s are protected together: worst case and declared'
      f' multiply the sensitivity of one by {group_size}{observed}, which is never too'
      ' little'
    )
    result.append(Assumption(OPERATOR, sentence))
  complete = (
    'the log is complete: it has every device whose update may have entered a released sum, and its'
    ' num_rounds counts every round whose noise was used up, failed ones too'
  )
  id_sentence = (
    'one device_id stands for one unit of privacy, spelled the same in all rounds: ids that differ'
    ' in case, leading zeros or look-alike letters count as other devices'
  )
  once = (
    'the noise of each round was used once: no copy of the whole state of a run, such as a snapshot'
    ' of its volume, was put back or continued beside it after later results were used'
  )
  if statement.unit != 'device':
    id_sentence = (
      f'the table of units has every device of each {statement.unit}, under the ids of the log: ids'
      ' that differ in case, leading zeros or look-alike letters count as other devices'
    )
  result += [Assumption(OPERATOR, complete), Assumption(OPERATOR, id_sentence)]
  result += [*_noise(runs, code), Assumption(code, _ARITHMETIC[statement.arithmetic.kind])]
  result.append(Assumption(OPERATOR, once))
  if len(runs) > 1:
    independent = (
      'the noise of each run is independent of that of the others; a device'
      ' that is in several runs has the same device_id in them'
    )
    if not is_of_population:
      independent += (
        '; which runs there were, and their strategies, noise and schemas, did not depend on what'
        ' the others released'
      )
    result.append(Assumption(OPERATOR, independent))
  if statement.disjoint:
    seen = (
      'each run has ids of its own, by which nothing can be seen of that'
      if statement.local_ids
      else 'the logs name none twice, and none has another id in another run'
    )
    sentence = f'every {statement.unit} is in one of the runs only, as whoever replays said: {seen}'
    result.append(Assumption(OPERATOR, sentence))
  for suffix, run in _named(runs):
    if run.claim.canaries is not None:
      checked = 'the schema was checked for them too, and ' if run.claim.declared else ''
      sentence = (
        f'the {run.claim.canaries.number:,} canaries{suffix} are no devices: {checked}numbers of'
        ' devices leave them out, by ids that follow from the claim'
      )
      result.append(Assumption(LOG, sentence))
    result += _of_run(run, suffix, is_of_population, code)
  return result


def grouped(statement: Statement, figure: str | None = None) -> dict[str, list[str]]:
  """Returns the sentences of each group: all, or those on which the figure of a part rests."""
  shown = [a for a in listed(statement) if figure is None or a.figure in (ALL, figure)]
  return {group: [a.sentence for a in shown if a.group == group] for group in GROUPS}


def _named(runs: Sequence[run_facts.RunFacts]) -> list[tuple[str, run_facts.RunFacts]]:
  """Returns the runs, with words that name each where there are several."""
  return [(f' in run {i}' if len(runs) > 1 else '', run) for i, run in enumerate(runs, 1)]


def _of_releases(statement: Statement) -> list[Assumption]:
  """Returns what each figure assumes of choices that could have followed releases.

  Adaptive participation and an adaptive end change no guarantee of all rounds that a schema allows:
  the squared norms of what a device adds to C x stay below its squared sensitivity on every path.
  Sources: Denisov et al. 2022, theorem 2.1 (adaptive streams); Smith and Thakurta 2022 (filters of
  Gaussian differential privacy).
  """
  end = 'the end of a run' if statement.several else 'the end of the run'
  figures = 'worst case assumes' if statement.observed is None else 'worst case and observed assume'
  figure = 'worst_case'
  if statement.planned and statement.planned.is_of_population:  # Whose worst case is declared.
    figures, figure = 'observed assumes', 'observed'
  sentence = f'{figures} that neither participation nor {end} depended on what was released'
  result = [Assumption(OPERATOR, sentence, figure)]
  if planned := statement.planned:
    sentence = f'no figure holds if what was released decided who took part, or {end}'
    if planned.holds:
      sentence = participation_sentences.adaptivity(planned.participation, end)
    result.append(Assumption(OPERATOR, sentence, planned.name))
  return result


def _planned(
  runs: Sequence[run_facts.RunFacts], planned: statement_parts.Planned, *terms: Any
) -> list[Assumption]:
  whole = planned.participation
  every = [whole] if len(runs) == 1 else [run.claim.answers for run in runs]
  recorded = {of_run: run.schema_in_log for of_run, run in _named(runs)}
  if planned.is_of_population:
    every, recorded = [whole], {'': True}
  result = list[Assumption]()
  for suffix, participation in zip(recorded, every):
    first, *others = participation_sentences.assumptions(participation, *terms)
    result.append(Assumption(OPERATOR if whole.is_secret else LOG, first + suffix, planned.name))
    result += [Assumption(OPERATOR, sentence + suffix, planned.name) for sentence in others]
  group = LOG if all(recorded.values()) and not whole.is_drawn else OPERATOR
  sentences = participation_sentences.verdicts(whole, recorded, planned.holds)
  result += [Assumption(group, sentence, planned.name) for sentence in sentences]
  if not planned.holds and sentences:  # The log shows that, whoever stated what it contradicts.
    result[-1] = result[-1]._replace(group=LOG)
  return result


def _noise(runs: Sequence[run_facts.RunFacts], code: str) -> list[Assumption]:
  """Returns what is stated of the noise, and what of it no log can confirm."""
  words = 'are stated by whoever replays: the log cannot confirm them'
  sentence = 'the stated strategy and noise multiplier were those of all rounds of the run'
  unconfirmed = [
    Assumption(OPERATOR, f'strategy and noise multiplier{of_run} {words}')
    for of_run, run in _named(runs)
    if not run.claim_in_log
  ]
  return [Assumption(code, sentence), *unconfirmed]


def _of_run(
  run: run_facts.RunFacts, suffix: str, is_of_population: bool, code: str
) -> list[Assumption]:
  """Returns the assumptions that only some runs have."""
  result, by_code = list[str](), list[str]()
  if run.units and run.units.cited:
    result.append(
      f'every {run.units.name} with devices was in the table{suffix} before their rounds began, as'
      ' the log cites it; the table did not depend on data that training protects'
    )
  elif run.units:
    result.append(
      f'the table of units{suffix} is not cited by the log: it may have been made afterwards, and'
      ' must not have been chosen by what was released'
    )
  if run.from_counts:
    result += [
      f'counts were given in place of the rows{suffix}: they are those of `--write_counts`, or of'
      ' the text of `fl-dpftrl sql` as it was written, run on all rows of a table that did not'
      ' change meanwhile',
      f'whoever counted{suffix} compared device ids byte by byte, and none was spelled in two ways'
      ' (Unicode, case, spaces, zeros before a number) or rounded to a float',
    ]
  if run.layout.missing != id_columns.MISSING:
    result.append(
      f'whoever replays said which texts mean a missing device_id{suffix}: no id that counted is'
      ' a mark of missing data'
    )
  if run.claim.population is not None and not is_of_population:
    result.append(
      f'the run drew on the budget of a population{suffix}: what all of its runs guarantee together'
      ' is said by a replay of the folder of the population'
    )
  if run.claim.trusted_operations:
    result.append(
      f'the operations {", ".join(run.claim.trusted_operations)}{suffix} keep and tell nothing that'
      " depends on devices' data: whoever trained stated it, check_process cannot see it"
    )
  if run.claim.adaptive_clipping is not None:
    by_code.append(
      f'the clip norm was adaptive{suffix}: that of a round was computed only from releases with'
      ' noise before it; the noise multiplier is that of updates and of the counts of clipped,'
      ' zeroed and rejected ones together, which the guarantee covers'
    )
  if run.claim.private_metrics is not None:
    names = ', '.join(run.claim.private_metrics.bounds)
    ended = 'has the guarantee of all declared rounds'
    if run.claim.declared is None:
      ended = 'has none of these guarantees, as no rounds were declared'
    by_code.append(
      f'means of the metrics {names} were released{suffix} with noise, which noise multiplier and'
      f' guarantee cover; a run that ended by them {ended}'
    )
  return [
    *(Assumption(OPERATOR, sentence) for sentence in result),
    *(Assumption(code, sentence) for sentence in by_code),
  ]
