"""Assumptions on which the figures of a replay rest, in sentences."""

from collections.abc import Sequence

from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.centralized import drawn as drawn_lib
from fl_dpftrl.logs import canaries, noise_record
from fl_dpftrl.logs import logged as logged_lib
from fl_dpftrl.replaying import runs as runs_lib


def sentences(
  runs: Sequence[runs_lib.Run],
  happened: Sequence[logged_lib.LoggedParticipation],
  *,
  holds: bool | None,
  adjacency: str,
  group_size: int,
  void_reason: str | None,
  drawn: drawn_lib.Drawn | None,
) -> list[str]:
  """Returns all assumptions.

  Args:
    runs: the runs that are accounted together.
    happened: participation observed in each of them.
    holds: whether the declared schemas hold; None if none is declared.
    adjacency: adjacency of neighbouring runs.
    group_size: devices that are protected together.
    void_reason: reason why nothing is guaranteed, or None.
    drawn: guarantee of the sampling scheme, if one is given.
  """
  of_run = lambda i: f' in run {i + 1}' if len(runs) > 1 else ''
  result = [
    f'worst case: {gaussian.assumptions(o.schema)[0]}{of_run(i)}, as in the log'
    for i, o in enumerate(happened)
  ]
  result.append('observed: devices took part in the very rounds of the log')
  if holds is not None:
    result += [
      f'declared: {gaussian.assumptions(run.declared_schema)[0]}{of_run(i)}'
      for i, run in enumerate(runs)
      if run.declared_schema is not None
    ]
    if any(run.schema_in_log for run in runs):
      result.append(
        'declared: the schema is the one in the metadata of the log, where a guard recorded it'
        ' before the first round'
      )
    if not holds:
      result.append(
        'THE DECLARED SCHEMA DOES NOT HOLD in this log: the figures under declared are void'
      )
  if drawn is not None:
    result += drawn.sentences()
  if not all(all(run.noise.multipliers) for run in runs):
    result.append('NO NOISE WAS ADDED: nothing is guaranteed')
  if void_reason:
    result.append(f'THE GUARANTEE IS VOID: {void_reason}')
  result += gaussian.assumptions(happened[0].schema)[1:]
  result.append(
    'worst case and observed also assume that participation does not depend on released'
    ' models; the declared guarantee holds even if participation depends on'
    ' released models, provided devices enforce the schema'
  )
  result += adjacency_lib.assumptions(adjacency)
  if group_size > 1:
    result.append(
      f'groups of {group_size} devices are protected together: worst case and declared multiply the'
      f' sensitivity of one by {group_size}, observed adds the {group_size} largest, upper bounds'
    )
  result += [
    'the log is complete: it has every device whose update may have entered a'
    ' released sum, and its num_rounds counts every row of noise consumed',
    'one device_id stands for one unit of privacy, the same in all rounds',
    'the strategy and the noise multiplier are those of the run',
    'each row of noise entered one released sum: no copy of the whole state of'
    ' a run was put back, or continued beside it, after later results were used',
  ]
  for i, run in enumerate(runs):
    if number := canaries.read(run.log.metadata):
      result.append(
        f'{number} device ids{of_run(i)}, those that begin with {canaries.PREFIX}, are canaries of'
        ' an audit: they hold no data, and are counted like devices everywhere'
      )
  if len(runs) > 1:
    result.append(
      'the noise of each run is independent of that of the others; a device'
      ' that is in several runs has the same device_id in them'
    )
  adaptive = [noise_record.read_clipping(run.log.metadata) for run in runs]
  for i, rule in enumerate(adaptive):
    if rule is not None:
      result.append(
        f'the clip norm was adaptive{of_run(i)}: that of a round was computed from noised releases'
        ' before it alone; the noise multiplier is that of updates and of the counts of clipped,'
        ' zeroed and rejected ones together, which the guarantee covers'
      )
  records = [noise_record.read(run.log.metadata) for run in runs]
  restarted = [
    record.restarts for run, record in zip(runs, records, strict=True) if run.noise.restarts
  ]
  if restarted:
    source = (
      'restarts are as the metadata of the log state them'
      if all(restarted)
      else 'restarts are stated by whoever replays, and the log cannot confirm them'
    )
    result.append(f'the noise from a restart on is independent of that before; {source}')
  if any(run.noise.changes for run in runs) or any(record.clip_norm_changes for record in records):
    result.append(
      'where the noise multiplier or the clip norm changed, the noise of a round was that of'
      ' the mechanism times the multiplier and the clip norm of that round'
    )
  return result
