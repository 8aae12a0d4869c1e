"""Flags of a simulated population, its timers and the server's rounds."""

import argparse
from typing import Any

from fl_dpftrl.simulation import availability, population, server
from fl_dpftrl.simulation import scenario as scenario_lib

_MOST_ROUNDS = 10**7

# Flags of availability.Nightly, with their types and help texts.
_NIGHTLY = (
  ('charging_hour', float, 'mean local hour at which devices are plugged in'),
  ('charging_hour_spread', float, 'its standard deviation between devices'),
  ('window_hours', None, 'shortest and longest charging time, in hours'),
  ('jitter_hours', float, 'largest shift of a device in one night, in hours'),
  ('charging_nights', float, 'fraction of the nights a device is charged'),
  ('weekend_delay_hours', float, 'delay in the nights to Sat and Sun, in hours'),
  ('daytime', float, 'check-in rate off the charger relative to that on it'),
  ('time_zones', None, 'time zones of the devices, in hours ahead of UTC'),
)
_DEVICES = (
  ('check_ins_per_hour', 'median check-ins per hour of an available device'),
  ('rate_spread', 'standard deviation of the logarithm of that rate'),
  ('report_minutes', 'median minutes from being chosen to reporting'),
  ('speed_spread', 'standard deviation of the logarithm of that time'),
  ('turnover_per_day', 'fraction of the devices replaced by new ones per day'),
  ('forgetting_per_day', 'fraction that loses the state of its timer per day'),
  ('wrong_clocks', 'fraction of the waits in which a clock is changed'),
  ('clock_error_hours', 'largest such change in either direction, in hours'),
)
_SERVER = (
  ('minutes_between_rounds', 'minutes from the end of a round to the next'),
  (
    'pace_minutes',
    'shortest time for a round to fill; devices are told to'
    ' come back later if it would fill faster; 0: no pacing',
  ),
  ('max_wait_days', 'days after which a round that is not full has stalled'),
)


def add_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
  """Adds all flags of a simulation; see the modules for the defaults."""
  add = parser.add_argument
  add('--population', type=int, required=required, help='devices')
  add('--report_goal', type=int, required=required, help='number of reports that a round needs')
  add('--num_rounds', type=int, required=True, help='n, number of rounds (each uses one noise row)')
  timers = parser.add_mutually_exclusive_group()
  timers.add_argument(
    '--timer_hours',
    type=float,
    help='minimum simulated hours before a device participates again; use'
    ' instead of --timer_rounds',
  )
  timers.add_argument(
    '--timer_rounds',
    type=int,
    help='minimum rounds before a device participates again (default: 1, which is no timer)',
  )
  add('--seed', type=int, default=0, help='seed of all random draws (default: 0)')
  add(
    '--availability',
    default='nightly',
    metavar='nightly|always|FILE',
    help='when devices are available: mostly at night on their chargers'
    ' (default), always, or as in a trace file (FedScale or FLASH)',
  )
  nightly = availability.Nightly()
  for name, kind, text in _NIGHTLY:
    default = getattr(nightly, name)
    shown = default if kind else ','.join(f'{v:g}' for v in default)
    add(f'--{name}', type=kind or _numbers, help=f'with nightly: {text} (default: {shown})')
  devices = population.Population(num_devices=1)
  for name, text in _DEVICES:
    add(f'--{name}', type=float, help=f'{text} (default: {getattr(devices, name):g})')
  add(
    '--dropout',
    type=float,
    default=scenario_lib.DROPOUT,
    help=f'fraction of the chosen that never report (default: {scenario_lib.DROPOUT:g})',
  )
  add(
    '--clients_per_round',
    type=int,
    help='number of devices chosen per round (default: 130 %% of the report goal)',
  )
  usual = server.Server(report_goal=1)
  for name, text in _SERVER:
    add(f'--{name}', type=float, help=f'{text} (default: {getattr(usual, name):g})')


def _numbers(text: str) -> tuple[float, ...]:
  return tuple(float(part) for part in text.split(','))


_numbers.__name__ = 'list of numbers'


def scenario(args: argparse.Namespace) -> scenario_lib.Scenario:
  """Returns the scenario that the flags describe.

  Raises:
    ValueError: if a flag is out of range; the message names it.
  """
  if not 1 <= args.num_rounds <= _MOST_ROUNDS:
    raise ValueError(
      f'--num_rounds={args.num_rounds} must lie in 1 to {_MOST_ROUNDS}, as each round is simulated'
    )
  if args.population < 1:
    raise ValueError(f'--population must be at least 1, got {args.population}')
  return scenario_lib.Scenario(
    population=args.population,
    report_goal=args.report_goal,
    timer_hours=args.timer_hours,
    timer_rounds=args.timer_rounds,
    seed=args.seed,
    availability=_availability(args),
    clients_per_round=args.clients_per_round,
    dropout=args.dropout,
    devices=_given(args, [name for name, _ in _DEVICES]),
    rounds=_given(args, [name for name, _ in _SERVER]),
  )


def _availability(args: argparse.Namespace) -> availability.Availability | str:
  given = _given(args, [name for name, _, _ in _NIGHTLY])
  if args.availability == 'nightly':
    return availability.Nightly(**given)
  for name, value in given.items():
    raise ValueError(f'--{name}={value} is for --availability=nightly, got {args.availability}')
  return args.availability


def _given(args: argparse.Namespace, names: list[str]) -> dict[str, Any]:
  values = {name: getattr(args, name) for name in names}
  return {name: v for name, v in values.items() if v is not None}
