"""The arguments of a replay, as evidence has them under `asked`."""

from typing import Any

from fl_dpftrl.prove.replaying import opened_runs, verdicts
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

OPTIONS = ('adjacency', 'group_size', 'disjoint', 'local_ids')
_ASKED = {*OPTIONS, 'deltas', 'model_sha256', 'runs', 'population'}
CLAIM = 'claim'  # Only where one is judged.
_OF_A_RUN = {'num_rounds', 'columns', 'first_round', 'missing'}
_KINDS: dict[str, tuple[type, ...]] = {
  **dict.fromkeys(('deltas', 'runs'), (list,)),
  **dict.fromkeys(('group_size', 'first_round'), (int,)),
  **{name: (str, type(None)) for name in ('columns', 'missing', 'model_sha256')},
  **dict.fromkeys(('adjacency', CLAIM), (str,)),
  **dict.fromkeys(('disjoint', 'local_ids', 'population'), (bool,)),
  'num_rounds': (int, type(None)),
}


def for_run(run: opened_runs.RecordedRun) -> json_files.Object:
  """Returns what is needed to open a run's log again."""
  log, layout = run.log, run.log.layout
  is_stated = log.num_rounds_assumed or log.shards[0].num_rounds is not None
  return {
    'num_rounds': None if is_stated else log.num_rounds,
    'columns': layout.own_names,
    'first_round': layout.first_round,
    'missing': layout.own_marks,
  }


def checked(asked: Any) -> json_files.Object:
  """Returns the arguments of a replay; ValueError unless all have their types."""
  if not isinstance(asked, dict) or asked.keys() - {CLAIM} != _ASKED:
    raise ValueError(f'asked must have {", ".join(sorted(_ASKED))}')
  for entry in (asked, *(asked['runs'] if isinstance(asked['runs'], list) else ())):
    if entry is not asked and (not isinstance(entry, dict) or entry.keys() != _OF_A_RUN):
      raise ValueError(f'runs must have {", ".join(sorted(_OF_A_RUN))} each')
    for name, value in entry.items():
      may_be_empty = name == 'runs' and asked['population'] is True
      if type(value) not in _KINDS[name] or (value == [] and not may_be_empty):
        raise ValueError(f'{name} must not be {messages.quoted(value)}')
  if any(type(delta) is not float for delta in asked['deltas']):
    raise ValueError(f'deltas must not be {messages.quoted(asked["deltas"])}')
  if CLAIM in asked:
    verdicts.ClaimedEpsilon.parse(asked[CLAIM])
  return asked
