"""Flags of a simulated population, its timers and the server's rounds."""

import argparse
import math

from fl_dpftrl.simulation import availability
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import population
from fl_dpftrl.simulation import presence
from fl_dpftrl.simulation import server
from fl_dpftrl.simulation import timer
from fl_dpftrl.simulation import trace_formats

_MOST_ROUNDS = 10**7
_OVER_SELECTION = 1.3
_DROPOUT = 0.08

# Flags of availability.Nightly, with their types and what they mean.
_NIGHTLY = (
    ('charging_hour', float, 'local hour at which devices are plugged in'),
    ('charging_hour_spread', float, 'its standard deviation between devices'),
    ('window_hours', None, 'shortest and longest time on the charger'),
    ('jitter_hours', float, 'a night moves a device by up to this'),
    ('charging_nights', float, 'part of the nights with a charger'),
    ('weekend_delay_hours', float, 'later in the nights to Sat and Sun'),
    ('daytime', float, 'check-ins off the charger, as a part of those on it'),
    ('time_zones', None, 'hours ahead of UTC in which devices live'),
)
_DEVICES = (
    ('check_ins_per_hour', 'median of how often an available device checks in'),
    ('rate_spread', 'standard deviation of the logarithm of that'),
    ('report_minutes', 'median of the time from being chosen to reporting'),
    ('speed_spread', 'standard deviation of the logarithm of that'),
    ('turnover_per_day', 'part of the devices replaced by new ones'),
    ('forgetting_per_day', 'part that loses the memory of its timer'),
    ('wrong_clocks', 'part of the waits in which a clock is changed'),
    ('clock_error_hours', 'by up to this, either way'),
)
_SERVER = (
    ('minutes_between_rounds', 'from the close of one to the next'),
    ('pace_minutes', 'devices are told to come later where a round would fill'
     ' in less; 0: never'),
    ('max_wait_days', 'that a round may take before it has stalled'),
)


def add_arguments(
    parser: argparse.ArgumentParser, *, required: bool = True
) -> None:
  """Adds all of them; those with a default are documented with it."""
  add = parser.add_argument
  add('--population', type=int, required=required, help='devices')
  add(
      '--report_goal', type=int, required=required,
      help='devices whose reports a round needs',
  )
  add(
      '--num_rounds', type=int, required=True,
      help='n, rounds that consume a row of noise',
  )
  timers = parser.add_mutually_exclusive_group()
  timers.add_argument(
      '--timer_hours', type=float,
      help='a device stays away so long after it reported',
  )
  timers.add_argument(
      '--timer_rounds', type=int,
      help='a device stays away until so many rounds later (default: 1, which'
      ' is no timer)',
  )
  add('--seed', type=int, default=0, help='names all draws (default: 0)')
  add(
      '--availability', default='nightly', metavar='nightly|always|FILE',
      help='when devices can be reached: mostly at night on their chargers'
      ' (default), always, or as in a file of traces (FedScale or FLASH)',
  )
  nightly = availability.Nightly()
  for name, kind, text in _NIGHTLY:
    default = getattr(nightly, name)
    shown = default if kind else ','.join(f'{v:g}' for v in default)
    add(
        f'--{name}', type=kind or _numbers,
        help=f'with nightly: {text} (default: {shown})',
    )
  devices = population.Population(num_devices=1)
  for name, text in _DEVICES:
    add(
        f'--{name}', type=float,
        help=f'{text} (default: {getattr(devices, name):g})',
    )
  add(
      '--dropout', type=float, default=_DROPOUT,
      help=f'part of the chosen that never reports (default: {_DROPOUT:g})',
  )
  add(
      '--clients_per_round', type=int,
      help='devices chosen (default: 130 %% of the report goal)',
  )
  usual = server.Server(report_goal=1)
  for name, text in _SERVER:
    add(
        f'--{name}', type=float,
        help=f'{text} (default: {getattr(usual, name):g})',
    )


def _numbers(text: str) -> tuple[float, ...]:
  return tuple(float(part) for part in text.split(','))


_numbers.__name__ = 'list of numbers'


def simulation(
    args: argparse.Namespace,
    *,
    seed: int | None = None,
    num_devices: int | None = None,
    report_goal: int | None = None,
) -> cohorts.Simulation:
  """What the flags describe.

  Args:
    args: of the flags.
    seed: instead of --seed.
    num_devices: instead of --population.
    report_goal: instead of --report_goal; --clients_per_round in proportion.

  Raises:
    ValueError: naming the flag that is outside its range.
  """
  if not 1 <= args.num_rounds <= _MOST_ROUNDS:
    raise ValueError(
        f'--num_rounds={args.num_rounds} must lie in 1 to {_MOST_ROUNDS}, as'
        ' each round is simulated'
    )
  seed = args.seed if seed is None else seed
  if num_devices is None:
    num_devices = args.population
    if num_devices < 1:
      raise ValueError(f'--population must be at least 1, got {num_devices}')
  goal = args.report_goal if report_goal is None else report_goal
  chosen = args.clients_per_round
  if chosen is None:
    chosen = math.ceil(_OVER_SELECTION * goal)
  elif report_goal is not None:
    chosen = math.ceil(chosen * report_goal / args.report_goal)
  return cohorts.Simulation(
      population=population.Population(
          num_devices=num_devices,
          seed=seed,
          availability=_availability(args),
          dropout=args.dropout,
          **_given(args, [name for name, _ in _DEVICES]),
      ),
      timer=_timer(args),
      server=server.Server(
          report_goal=goal,
          clients_per_round=chosen,
          **_given(args, [name for name, _ in _SERVER]),
      ),
      seed=seed,
  )


def _timer(args: argparse.Namespace) -> timer.Timer:
  if args.timer_hours is not None:
    return timer.HourTimer(args.timer_hours)
  return timer.RoundTimer(1 if args.timer_rounds is None else args.timer_rounds)


def _availability(args: argparse.Namespace) -> presence.Availability:
  given = _given(args, [name for name, _, _ in _NIGHTLY])
  if args.availability == 'nightly':
    return availability.Nightly(**given)
  for name, value in given.items():
    raise ValueError(
        f'--{name}={value} is for --availability=nightly, got'
        f' {args.availability}'
    )
  if args.availability == 'always':
    return availability.Always()
  return trace_formats.read_traces(args.availability)


def _given(args: argparse.Namespace, names: list[str]) -> dict[str, float]:
  values = {name: getattr(args, name) for name in names}
  return {name: v for name, v in values.items() if v is not None}
