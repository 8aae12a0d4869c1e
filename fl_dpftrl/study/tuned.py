"""The best of a secret number of runs, the only one published, with an ε that covers the choice."""

import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
import secrets
import shutil
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.noise import normals
from fl_dpftrl.participation import accountant, accounting
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.participation.accounting.tuning import Tuning
from fl_dpftrl.study import result_tables, running
from fl_dpftrl.study.cells import Cell, Run
from fl_dpftrl.study.designs import Condition, Design
from fl_dpftrl.study.study_noise import Noises
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import durable, json_files

MODEL_NAME, PUBLIC = 'model.npz', 'public'
PLAN_NAME, _WINNER_NAME = 'tuning.json', 'winner.json'
_SECRET_NAME, _DRAWS_NAME, _RUNS_NAME = 'secret', 'draws.json', 'runs'
_PROOF = ('epsilon', 'delta', 'void_reason')
_CELLS_NAME = 'cells'  # of a study that is not tuned
_UNITS = 1 << 20  # of a user's score
# What a user moves a sum by beyond 1, once it is rounded to units, and a user's share of what the
# means of two neighbours are off as float32.
_ROUNDED, _OFF = 1.0 / _UNITS, 2.0**-24


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
  """Score on users whose data are private: their mean accuracy, with noise.

  Attributes:
    num_users: number of these users, the fixed divisor of the mean that a run returns, correct as
      float32; each adds 0 to 1 to the sum.
    noise_multiplier: standard deviation of the noise of the sum; 0 for none, which guarantees these
      users nothing.
    disjoint: True if none of these users trains, which is then assumed and makes ε smaller.
  """

  num_users: int
  noise_multiplier: float
  disjoint: bool = False

  def __post_init__(self):
    checks.whole(num_users=self.num_users)
    if self.noise_multiplier:
      checks.positive(noise_multiplier=self.noise_multiplier)
      if not 1e-3 <= self.noise_multiplier <= 1e9:
        raise ValueError(f'noise_multiplier={self.noise_multiplier:g} must be 0, or 0.001 to 1e9')

  def noised(self, mean: float) -> float:
    """Returns the mean with secret noise, as whole units of 2⁻²⁰ until it is divided."""
    total, row = round(mean * self.num_users * _UNITS), np.zeros(1, np.int64)
    if self.noise_multiplier:
      normals.Normals(normals.system_seed()).fill(0, 0, self.noise_multiplier * _UNITS, row)
    return (total + int(row[0])) / (self.num_users * _UNITS)

  def with_training(self, run: accounting.Guarantee) -> accounting.Guarantee:
    """Returns the guarantee of a run and its score, for the users whom it protects least."""
    moved = 1.0 + _ROUNDED + self.num_users * _OFF
    mu = moved / self.noise_multiplier if self.noise_multiplier else 0.0
    mu = max(run.mu, mu) if self.disjoint else math.hypot(run.mu, mu)
    return dataclasses.replace(run, noise_multiplier=run.sensitivity / (mu - run.rounding.mu))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Winner:
  """Result of a tuned study: all that it publishes.

  Attributes:
    mechanism, server_learning_rate: cell of the winner; None where every run failed.
    score: its score, with noise unless it is public.
    model: path of its model.
    epsilon, delta: guarantee of all that is published; ε is None where there is none.
    sentence: what may be said of it.
    assumptions: what must hold.
    digest: SHA-256 of law and grid, as they were written before any run.
  """

  mechanism: str | None = None
  server_learning_rate: float | None = None
  score: float | None = None
  model: str | None = None
  epsilon: float | None
  delta: float
  sentence: str
  assumptions: tuple[str, ...]
  digest: str


def check(
  design: Design, tuning: Any, score: Any, jobs: int, *, has_seeds: bool, cell: int | None
) -> Tuning:
  """Returns the tuning; ValueError for what would choose from results outside the guarantee."""
  if not isinstance(tuning, Tuning):
    raise ValueError(f'tuning must be a Tuning, got {type(tuning).__name__}')
  if score != PUBLIC and not isinstance(score, HeldOut):
    raise ValueError(f"score must be '{PUBLIC}' or a HeldOut, got {type(score).__name__}")
  if isinstance(score, HeldOut) and not design.metric.is_accuracy:
    raise ValueError('score: the metric of held-out users must be an accuracy, from 0 to 1')
  reasons = {
    'seeds': 'each run draws its own' if has_seeds else None,
    'jobs': None if type(jobs) is int and 0 <= jobs <= 1000 else 'it must be 0 to 1000',
    'cell': 'how many runs there are is secret' if cell is not None else None,
    'without_noise': 'give False, as each run must be private' if design.without_noise else None,
    'participation': 'runs must not share secret draws; give a schema' if design.is_drawn else None,
    'deployment_report_goal': 'ε is that of the runs' if design.deployment_report_goal else None,
  }
  for name, reason in reasons.items():
    if reason is not None:
      raise ValueError(f'{name} is refused with tuning: {reason}')
  return tuning


def best(
  design: Design,
  noises: Noises,
  run: Run,
  path: pathlib.Path,
  tuning: Tuning,
  score: Any,
  jobs: int,
) -> Winner:
  """Runs a secret number of cells, publishes the best, and deletes all else; see `study`."""
  with durable.locked(path / 'lock'):
    plan, digest = _plan(design, tuning, score)
    if (path / PLAN_NAME).exists() and json_files.read(path / PLAN_NAME) != plan:
      raise ValueError(
        f'{path / PLAN_NAME} is of another law, grid or score: they are fixed before the first'
        ' run, and a new folder spends its ε anew'
      )
    if (path / _CELLS_NAME).exists():
      raise ValueError(f'{path} holds a study that is not tuned; name a new folder')
    unwon = _unwon(design, noises, tuning, score, digest)  # Refuses what none holds for.
    secret, is_new = path / _SECRET_NAME, not (path / PLAN_NAME).exists()
    if is_new:  # The plan comes last, so that a start that was cut short is made again.
      secret.mkdir(mode=0o700, exist_ok=True)
      os.chmod(secret, 0o700)  # There may be one already.
      if not (secret / _RUNS_NAME).exists():
        (secret / _DRAWS_NAME).unlink(missing_ok=True)
      _drawn(design, noises, secret, tuning)
      durable.write_durably(path / PLAN_NAME, json.dumps(plan).encode())
    if not (path / _WINNER_NAME).exists():
      if not (secret / _DRAWS_NAME).exists():
        raise ValueError(
          f'{path} was begun, and its draws are gone: runs would be drawn a second time. Name a new'
          ' folder; what was run here has spent its ε'
        )
      if not (secret / _WINNER_NAME).exists():
        cells = _drawn(design, noises, secret, tuning)
        rest = [c for c in cells if c.ended() is None and not (c.home / 'failed').exists()]
        guarded = functools.partial(_guarded, run)
        for cell, reason in running.trained(guarded, rest, jobs, may_fail=True):
          if reason:
            durable.write_durably(cell.home / 'failed', b'')
        winner, model = _chosen(design, cells, score, unwon)
        text = json.dumps([dataclasses.asdict(winner), model and str(model)], allow_nan=False)
        durable.write_durably(secret / _WINNER_NAME, text.encode())  # Chosen once.
      stored, source = json_files.read(secret / _WINNER_NAME)
      if source is not None:
        durable.write_durably(path / MODEL_NAME, pathlib.Path(source).read_bytes())
      durable.write_durably(path / _WINNER_NAME, json.dumps(stored).encode())
    if secret.exists():
      shutil.rmtree(secret)
    began = (path / PLAN_NAME).stat().st_mtime
    for place in (path / MODEL_NAME, path / _WINNER_NAME, path):  # No copy tells how long it took.
      if place.exists():
        os.utime(place, (began, began))
    stored = json_files.read(path / _WINNER_NAME)
    model = stored['model'] and str(path / stored['model'])
    return Winner(**{**stored, 'model': model, 'assumptions': tuple(stored['assumptions'])})


def _plan(design: Design, tuning: Tuning, score: Any) -> tuple[dict, str]:
  """Returns law, grid and score as they are written before any run, and their digest."""
  law = {'law': tuning.law, 'mean': tuning.mean, 'most': tuning.most}
  grid = [[s.label, s.epsilon, rate] for s, rate in _grid(design)]
  how = score if score == PUBLIC else dataclasses.asdict(score)
  text = json.dumps({'tuning': law, 'grid': grid, 'score': how})
  digest = hashlib.sha256(text.encode()).hexdigest()
  return {**json.loads(text), 'digest': digest}, digest


def _grid(design: Design) -> list[tuple[Condition, float]]:
  rates = lambda setting: setting.mechanism.server_learning_rates or design.server_learning_rates
  return [(setting, rate) for setting in design.settings for rate in rates(setting)]


def _drawn(design: Design, noises: Noises, secret: pathlib.Path, tuning: Tuning) -> list[Cell]:
  """Returns the cells of all runs: their number, places in the grid and seeds are drawn once."""
  path, grid = secret / _DRAWS_NAME, _grid(design)
  if not path.exists():
    draws = np.random.Generator(np.random.PCG64(secrets.randbits(256)))
    count = int(draws.choice(len(tuning.chances), p=tuning.chances)) + 1
    places = [[secrets.randbelow(len(grid)), secrets.randbelow(2**31)] for _ in range(count)]
    durable.write_durably(path, json.dumps(places).encode(), private=True)
  cells = []
  for number, (place, seed) in enumerate(json_files.read(path)):
    setting, rate = grid[place]
    cells.append(
      Cell(
        design=design,
        setting=setting,
        noise=noises[setting],
        server_learning_rate=rate,
        seed=seed,
        study=secret / _RUNS_NAME / str(number),  # Anyone may see how many folders `secret` has.
      )
    )
  return cells


def _guarded(run: Run, cell: Cell) -> dict[str, Any]:
  """Trains a cell, and returns its score and what proves its ε; all that is wrong is a failure."""
  # An error that ended the study would let the next call repeat a run because of its data.
  metric = cell.design.metric
  try:
    summary = dict(run(cell))
    value = float(summary['validation'][metric.name])
  except Exception:
    raise RuntimeError('the run failed') from None  # Why may tell of data.
  if metric.is_accuracy:  # A held-out user must not make a run fail.
    value = min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0
  proof = {name: summary[name] for name in _PROOF if name in summary}
  return {**proof, 'validation': {metric.name: value}, 'test': {metric.name: value}}


def _unwon(design: Design, noises: Noises, tuning: Tuning, score: Any, digest: str) -> Winner:
  """Returns what is published before a run has won: ε, what may be said of it and must hold."""
  guarantees = [
    accountant.account(
      files.load_strategy(noise.strategy),
      design.participation,
      noise_multiplier=noise.noise_multiplier,
      delta=design.delta,
      num_coordinates=arithmetics.MANY_COORDINATES,
    )
    for noise in filter(None, noises.values())
  ]
  whole = max(guarantees, key=lambda guarantee: guarantee.mu)
  assumptions = (*whole.assumptions, *tuning.assumptions)
  if score != PUBLIC:
    whole = score.with_training(whole)
    assumptions += ('none of the held-out users trains',) * score.disjoint
  epsilon, sentence = tuning.epsilon(whole), tuning.sentence(whole)
  if score != PUBLIC and not score.noise_multiplier:
    epsilon = math.inf
    sentence = (
      f'no ε holds for the held-out users: their score has no noise; for others, {sentence}'
    )
  return Winner(
    epsilon=epsilon if math.isfinite(epsilon) else None,
    delta=design.delta,
    sentence=sentence,
    assumptions=assumptions,
    digest=digest,
  )


def _chosen(
  design: Design, cells: list[Cell], score: Any, unwon: Winner
) -> tuple[Winner, pathlib.Path | None]:
  """Returns the winner, and where its model is; ties are broken by lot."""
  scored = []
  for cell in cells:
    row = cell.ended()
    if row is None or row.status != result_tables.DONE or not (cell.folder / MODEL_NAME).exists():
      continue  # It counts as the worst.
    value: Any = row.validation if score == PUBLIC else score.noised(row.validation)
    scored.append((design.metric.sign * value, secrets.randbits(64), value, cell))
  if not scored:
    nothing = f'; no run had a score and a {MODEL_NAME}, so nothing is published'
    return dataclasses.replace(unwon, sentence=unwon.sentence + nothing), None
  _, _, value, cell = max(scored, key=lambda entry: entry[:2])
  winner = dataclasses.replace(
    unwon,
    mechanism=cell.setting.label,
    server_learning_rate=cell.server_learning_rate,
    score=value,
    model=MODEL_NAME,
  )
  return winner, cell.folder / MODEL_NAME
