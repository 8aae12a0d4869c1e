"""Text output of the `replay` command."""

import sys
from collections.abc import Sequence
from typing import Any

from fl_dpftrl.logs import pseudonyms
from fl_dpftrl.prove.replaying import (
  assumption_sentences,
  observed_losses,
  participation_sentences,
  statements,
  verdicts,
)
from fl_dpftrl.support.text import messages, roundings

LONGEST = 1000  # maximum number of characters of a sentence
_LISTED = 8  # columns


def text(result: statements.Statement, verdict: verdicts.Verdict | None = None) -> str:
  """Returns the verdict, the guarantees, rounded up, and their assumptions as text."""
  per_device = result.per_device
  most = str(result.max_participations)
  if result.most_over_runs is not None:
    most = f'{result.most_over_runs} in all runs, {most} in one'
  short = None if result.several else result.runs[0].rounds_short_of_report_goal
  lines = []
  if verdict:
    lines += [f'claim               {messages.one_line(verdict, limit=LONGEST)}', '']
  if result.void_reason:
    reason = messages.one_line(result.void_reason, limit=LONGEST)
    lines += [f'THE GUARANTEE IS VOID: {reason}', '']
  lines += [
    f'rounds n            {result.num_rounds}',
    f'{f"{result.unit}s":<20}{result.num_devices}',
    *([f'{f"{result.unit} ids":<20}{_ids(result)}'] if result.ids else []),
    *_units(result),
    *_columns(result),
    f'participations      {result.num_participations}',
    f'min-sep b           {result.min_sep}  ({_closest(result)})',
    f'{f"max per {result.unit} k":<20}{most}',
  ]
  if short is not None:
    lines.append(f'below report goal   {short} rounds, by devices admitted')
  if result.rounds_may_follow and not result.void_reason:
    lines.append(f'guarantee           {result.quoted}')
  lines += [*_per_run(result), '', *_guarantees(result), *_violated(result)]
  if not (result.void_reason or result.worst_case.void_reason):
    lines += ['', verdicts.to_quote(result)]
  lines += _per_device(result, per_device) if per_device else []
  groups = assumption_sentences.grouped(result)
  for group, title in assumption_sentences.GROUPS.items():
    lines += _bullets(f'assumptions: {title}', groups[group])
  lines += _bullets('void if', verdict.void_if if verdict else ())
  for run in result.runs:
    if run.claim.private_metrics is not None:
      names = messages.one_line(', '.join(run.claim.private_metrics.bounds), limit=LONGEST)
      lines += ['', f'metrics released with noise, which the guarantees cover: {names}']
  if result.not_private_metrics:
    names = messages.one_line(', '.join(result.not_private_metrics), limit=LONGEST)
    lines += ['', f'metrics without the noise, which nothing here covers: {names}']
  return '\n'.join(lines)


def _ids(result: statements.Statement) -> str:
  """Returns facts of the ids, which may be random names: then no spelling of an id can be told."""
  ids: Any = result.ids
  has_population = any(run.claim.population for run in result.runs)
  if has_population and ids.is_text and ids.shortest == ids.longest == pseudonyms.LENGTH:
    return f'{ids}; where the population has names, how ids are spelt is not known'
  return str(ids)


def _bullets(title: str, sentences: Sequence[str]) -> list[str]:
  """Returns sentences below a title; nothing without any."""
  shown = [f'- {messages.one_line(sentence, limit=LONGEST)}' for sentence in sentences]
  return ['', title, *shown] if shown else []


def say_warnings(result: statements.Statement) -> None:
  """Prints what a reader should know of the logs, on stderr."""
  for warning in _warnings(result):
    print(messages.one_line(f'fl-dpftrl: warning: {warning}', limit=LONGEST), file=sys.stderr)


def _warnings(result: statements.Statement) -> list[str]:
  warnings = list(result.warnings)
  devices = result.num_devices or 0
  largest = max(result.parts[0].guarantee.deltas)
  if devices and largest * devices >= 1.0:
    warnings.append(
      f'--delta={largest:g} is not below 1 / {devices}, one over the number of devices: such'
      ' a δ allows all data of a device to be revealed; give a far smaller one'
    )
  # A log that states its claim has a name of its run, which no other has.
  unnamed = [() if run.claim_in_log else run.log or () for run in result.runs]
  names = [tuple(file['sha256'] for file in files) for files in unnamed]
  for place, files in enumerate(names):
    if files and files in names[:place]:
      warnings.append(
        f'the log of run {place + 1} is that of run {names.index(files) + 1}, byte for byte;'
        ' if another run was meant, its loss is missing'
      )
  if result.void_reason:
    warnings.append(f'THE GUARANTEE IS VOID: {result.void_reason}')
  planned = result.planned
  if planned and not planned.holds:
    warnings.append(participation_sentences.warning(planned.participation, planned.reason))
  return warnings


def _units(result: statements.Statement) -> list[str]:
  """Returns how many devices there are, where others own them."""
  return [
    f'devices             {_place(result, i)}{run.counted.num_devices} of'
    f' {run.units.num_devices} in the table of {run.units.num_units} {run.units.name}s, at most'
    f' {run.units.max_rows} of one in a round'
    for i, run in enumerate(result.runs)
    if run.units and run.counted
  ]


def _place(result: statements.Statement, place: int) -> str:
  """Returns the beginning of what is said of one of several runs."""
  return f'run {place + 1}: ' if result.several else ''


def _columns(result: statements.Statement) -> list[str]:
  """Returns which columns of the logs nothing read."""
  lines = []
  for i, run in enumerate(result.runs):
    if run.unused_columns:
      names = ', '.join(messages.quoted(name, 40) for name in run.unused_columns[:_LISTED])
      more = ', …' * (len(run.unused_columns) > _LISTED)
      lines.append(
        f'columns not used    {_place(result, i)}{names}{more}: neither read nor checked'
      )
  return lines


def _closest(result: statements.Statement) -> str:
  """Returns a pair of participations that min-sep is of, with its run where there are several."""
  pair, suffix = result.closest, f' of run {result.closest_run + 1}' if result.several else ''
  if pair is None:
    return f'no {result.unit} took part twice{suffix.replace("of", "in")}'
  return (
    f'{result.unit} {messages.quoted(pair.device_id)}, rounds {pair.first_round} and'
    f' {pair.second_round}{suffix}'
  )


def _violated(result: statements.Statement) -> list[str]:
  """Returns what a declared schema that does not hold leaves, as lines."""
  violations = result.violations
  if violations is None:
    return []
  places = [
    f'{p["round"]} of run {p["run"]}' if result.several else str(p['round'])
    for p in violations.first_rounds
  ]
  more = ', …' if violations.num_rounds > len(places) else ''
  void = bool(result.void_reason or result.worst_case.void_reason)
  lines = [
    '',
    f'{"VOID: " if void else ""}not kept to what was declared: {violations.num_devices}'
    f' {result.unit}s, in'
    f' {violations.num_rounds} rounds'
    f' ({", ".join(places)}{more})',
    f'  largest loss of one of them   ε = {_up(violations.largest.epsilon())},'
    f' ρ = {_up(violations.largest.rho)}',
  ]
  if violations.num_complied:
    lines.append(
      f'  any one of the {violations.num_complied} others    ε ≤'
      f' {_up(violations.complied.epsilon())}, ρ ≤ {_up(violations.complied.rho)}'
    )
  return lines if void else [*lines, f'  {violations.MEANING}']


def _per_run(result: statements.Statement) -> list[str]:
  """Returns one line for each of several runs."""
  if not result.several:
    return []
  return [
    f'run {i + 1:<16}n = {run.num_rounds}, b = {run.min_sep}, k ='
    f' {run.max_participations}, {run.claim.strategy.family}, noise'
    f' multiplier {roundings.exact(run.claim.noise_multiplier)}'
    for i, run in enumerate(result.runs)
  ]


def _guarantees(result: statements.Statement) -> list[str]:
  """Returns a table with a column for each guarantee, as lines."""
  parts = result.parts
  guarantees = [part.guarantee for part in parts]
  effective = [guarantee.effective_noise_multiplier for guarantee in guarantees]
  names = [part.name.replace('_', ' ') for part in parts]
  valid = [part.holds and not result.void_reason for part in parts]
  rows = [
    ['', *(name if holds else f'{name}: VOID' for name, holds in zip(names, valid))],
    ['sensitivity', *(roundings.computed(g.sensitivity) for g in guarantees)],
    ['', *(g.sensitivity_kind.replace('_', ' ') for g in guarantees)],
    # Rounding up would overstate the noise.
    ['noise / sensitivity', *map(roundings.computed_down, effective)],
    ['ρ (zCDP)', *(_up(g.rho) for g in guarantees)],
    ['μ (Gaussian DP)', *(_up(g.mu) for g in guarantees)],
  ]
  for delta in result.deltas:
    label = f'ε at δ = {roundings.exact(delta)}'
    rows.append([label, *(_up(g.epsilon(delta)) for g in guarantees)])
  rows.append(['', *(str(part.tightness or '') for part in parts)])
  widths = [max(map(len, column)) + 2 for column in zip(*rows)]
  lines = [''.join(f'{cell:<{w}}' for cell, w in zip(row, widths)).rstrip() for row in rows]
  return [*lines, '', f'arithmetic          {arithmetic(result)}']


def arithmetic(result: statements.Statement) -> str:
  """Returns what the releases are numbers of, and what that adds to the guarantee."""
  if result.rounding is None:
    return statements.SHOWN_ARITHMETIC[result.arithmetic.kind]
  worst = result.worst_case
  lost = f'{roundings.up(result.rounding.delta(worst.epsilon()))} to δ'
  lost = 'all of δ' if worst.void_reason else lost
  added = f'adds {roundings.up(result.rounding.mu)} to μ, in the figures above, and'
  if result.planned and result.planned.is_of_population:
    added = 'was charged to the budget, and adds'
  return f'covered: whole numbers, whose rounding {added} {lost}'


def _per_device(result: statements.Statement, per_device: observed_losses.PerDevice) -> list[str]:
  """Returns the distribution of the privacy loss over devices, as lines."""
  if not per_device.rho_histogram:
    return []
  void = 'VOID: ' if result.void_reason else ''
  whom = 'each alone' if result.group_size == 1 else f'each alone, not {result.group_size} together'
  lines = [
    '',
    f'{void}share of participating {result.unit}s, {whom}, from their actual rounds'
    f' (δ = {roundings.exact(result.delta)})',
  ]
  for share, loss in per_device.quantiles:
    lines.append(f'{100 * share:>6g} % have ε ≤ {_up(loss.epsilon())}, ρ ≤ {_up(loss.rho)}')
  return [*lines, 'These figures come from the private log and are for the operator.']


def _up(value: float | None) -> str:
  return 'none' if value is None else roundings.up(value)
