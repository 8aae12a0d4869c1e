"""Kills each example at random moments, starts it again, and proves what its folder says.

    for name in any_loop pytorch_loop; do python -m tests.rounds.kills 30 $name; done

A child journals what it adds and releases before the example may use it. After each kill each
release is its sum plus the row of its round, no row is in two, and mark and log go as far.
"""

import contextlib
import json
import multiprocessing
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

import numpy as np

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'
# Libraries of each example: they are loaded once, and a start is a fork.
LIBRARIES = {
  'any_loop': (),
  'pytorch_loop': ('torch',),
  'jax_optax': ('jax', 'optax'),
  'central': ('jax', 'fl_dpftrl.optimization', 'fl_dpftrl.amplification.accountant'),
  'pfl_mechanism': ('torch', 'pfl.aggregate.simulate', 'pfl.model.pytorch'),
  'opacus_optimizer': ('torch', 'fl_dpftrl.adapters.opacus'),
  'flower_strategy': ('flwr.simulation', 'flwr.serverapp.strategy', 'ray'),
}
_ARGUMENTS = {'central': ('--epsilon=8', '--bands=4', '--num_rounds=60', '--batch_size=100')}


def child(name: str, folder: pathlib.Path, journal: pathlib.Path, output: pathlib.Path) -> None:
  """Runs an example that journals its updates and releases."""
  os.setsid()
  out = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
  os.dup2(out, 1)
  os.dup2(out, 2)
  from fl_dpftrl.rounds import aggregator as aggregator_lib
  from fl_dpftrl.rounds import round as round_lib

  log = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
  write = lambda **facts: os.write(log, ('\n' + json.dumps(facts) + '\n').encode())
  begin, add, mean_of = (
    round_lib.Round.begin,
    round_lib.Round.add,
    aggregator_lib.PrivateAggregator._mean,
  )

  def begun(self):
    begin(self)
    write(begun=self.index, devices=[str(device) for device in self.device_ids])
    return self

  def added(self, update, *, device_id=None):
    outcome = add(self, update, device_id=device_id)
    if device_id is not None:
      write(added=self.index, device=str(device_id))
    return outcome

  def released(self, t, like):
    total, unit = self._sum.total().copy(), self._unit
    packed = mean_of(self, t, like)
    mean = np.concatenate([part.ravel() for part in self.template.flat(packed)])
    scale = unit.size * self.clip_norm / self.report_goal
    facts = dict(shift=unit.shift, scale=scale, total=total.tolist(), mean=mean.tolist())
    write(released=t, **facts)
    return packed

  round_lib.Round.begin, round_lib.Round.add = begun, added
  aggregator_lib.PrivateAggregator._mean = released
  path = EXAMPLES / f'{name}.py'
  sys.argv = [str(path), str(folder), *_ARGUMENTS.get(name, ())]
  exec(compile(path.read_text(), str(path), 'exec'), {'__name__': '__main__'})
  write(ended=True)


def _read(line: str) -> list[dict]:
  """Returns what a line says; nothing of one that a kill cut short, which nothing came after."""
  try:
    return [json.loads(line)]
  except ValueError:
    return []


class Proof:
  """What a folder and its journal prove; raises ValueError where they do not."""

  def __init__(self, folder: pathlib.Path, journal: pathlib.Path):
    text = journal.read_text() if journal.exists() else ''
    self.facts = [fact for line in text.split('\n') for fact in _read(line)]
    self._folder = folder
    self.released = [fact['released'] for fact in self.facts if 'released' in fact]
    self.has_ended = any('ended' in fact for fact in self.facts)

  def check(self) -> None:
    from fl_dpftrl.files import mark

    if not self.facts:
      return
    if len(set(self.released)) < len(self.released):
      raise ValueError(f'a row of noise is in two releases: {self.released}')
    marked = mark.MarkFile(self._folder / 'noise' / 'used')
    used = marked.released() or 0
    marked.close()
    if used < max(self.released, default=-1) + 1:
      raise ValueError(f'{used} rows are marked as used, and {max(self.released)} was released')
    cohorts = self._cohorts()
    if len(cohorts) < used:
      raise ValueError(f'the log has {len(cohorts)} rounds, and {used} rows were used')
    for fact in self.facts:
      if 'begun' in fact and set(fact['devices']) != cohorts[fact['begun']]:
        raise ValueError(f'round {fact["begun"]} has another cohort in the log')
      if 'added' in fact and fact['device'] not in cohorts[fact['added']]:
        raise ValueError(f'an update of round {fact["added"]} is of a device that is not logged')

  def _cohorts(self) -> list[set[str]]:
    from fl_dpftrl.logs import ledger
    from fl_dpftrl.logs import log as log_lib

    path = self._folder / 'participation.parquet'
    if not (path.exists() or ledger.path_of(path).exists()):
      return []
    try:
      log = log_lib.read_log(path)
    except log_lib.refusals.LogError as error:
      if 'has no round' not in str(error):
        raise
      return []
    cohorts: list[set[str]] = [set() for _ in range(log.num_rounds)]
    for table in log.tables():
      rounds, devices = (table.column(key).to_pylist() for key in ('round', 'device_id'))
      for t, device in zip(rounds, devices):
        cohorts[t].add(str(device))
    return cohorts

  def check_rows(self) -> None:
    """Makes all rows anew, and compares each release with its sum and its row."""
    import fl_dpftrl as dpftrl
    from fl_dpftrl.noise import rows as rows_lib

    secret = json.loads((self._folder / 'noise' / 'secret.json').read_text())
    strategy = dpftrl.load_strategy(self._folder / 'strategy.json')
    maker = rows_lib.RowMaker(
      strategy,
      size=secret['size'],
      num_rounds=strategy.max_rounds or 2**20,
      seed=bytes.fromhex(secret['seed']),
      num_threads=1,
    )
    by_round = {fact['released']: fact for fact in self.facts if 'released' in fact}
    row = np.empty(secret['size'], np.int64)
    for t in range(max(self.released, default=-1) + 1):
      maker.make(row)
      if t in by_round:
        fact = by_round[t]
        noised = (np.array(fact['total'], np.int64) << fact['shift']) + row
        expected = (noised * fact['scale']).astype(np.float32)
        if not np.array_equal(expected, np.array(fact['mean'], np.float32)):
          raise ValueError(f'release {t} is not its sum plus row {t}')
    maker.close()

  def replay(self) -> float:
    """Returns ε of a run that has ended, and checks that replay counts all releases."""
    import fl_dpftrl as dpftrl

    run = dpftrl.open_run(self._folder / 'participation.parquet', self._folder / 'strategy.json')
    statement = dpftrl.replay(run, deltas=1e-6)
    if statement.num_rounds < len(self.released):
      raise ValueError(f'replay has {statement.num_rounds} rounds of {len(self.released)}')
    return statement.worst_case.epsilon()


def kill(name: str, count: int, folder: pathlib.Path, rng: random.Random) -> None:
  """Kills an example count times, at random moments.

  One in five is while it starts, the others after up to a sixth of a run's updates."""
  context = multiprocessing.get_context('forkserver')
  context.set_forkserver_preload(['fl_dpftrl.rounds', *LIBRARIES[name]])
  kills, runs, releases, burnt, lines, to_first = 0, 0, 0, 0, 0, 0.0
  started = time.monotonic()
  while kills < count:
    own, journal, output = (folder / f'{name}-{runs}{end}' for end in ('', '.jsonl', '.out'))
    before, start = _count(journal), time.monotonic()
    process = context.Process(target=child, args=(name, own, journal, output))
    process.start()
    if not lines:  # The first run is whole, and is measured.
      while process.is_alive() and not _count(journal):
        time.sleep(0.002)
      to_first = time.monotonic() - start
    elif rng.random() < 0.2:
      process.join(rng.uniform(0.0, to_first))
    else:
      wanted = before + rng.randrange(max(lines // 6, 2))
      while process.is_alive() and _count(journal) <= wanted:
        time.sleep(0.002)
      process.join(rng.uniform(0.0, 0.02))
    if lines and process.is_alive():
      _kill(process)
      kills += 1
    process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
      raise ValueError(f'{name} failed: {output.read_text()[-3000:]}')
    lines = lines or _count(journal)
    proof = Proof(own, journal)
    proof.check()
    if proof.has_ended or kills >= count:
      if proof.released:
        proof.check_rows()
      if proof.has_ended:
        proof.replay()
      runs += 1
      releases += len(proof.released)
      burnt += sum('begun' in fact for fact in proof.facts) - len(proof.released)
  print(
    f'{name}: {kills} kills in {runs} runs and {time.monotonic() - started:.0f} s, {releases}'
    f' releases, {burnt} rounds burnt; each release is its sum plus its own row, no row is in two,'
    ' and the log has each device that added an update',
    flush=True,
  )


def _count(journal: pathlib.Path) -> int:
  return journal.read_bytes().count(b'\n') // 2 if journal.exists() else 0


def _kill(process: multiprocessing.process.BaseProcess) -> None:
  pid = process.pid
  if pid is None:
    raise ValueError('the process was not started')
  with contextlib.suppress(ProcessLookupError):  # Before it had a session of its own.
    os.killpg(pid, signal.SIGKILL)
  process.kill()
  process.join()


def main(count: str, name: str) -> None:
  with tempfile.TemporaryDirectory() as folder:
    kill(name, int(count), pathlib.Path(folder), random.Random(name))


if __name__ == '__main__':
  main(*sys.argv[1:])
