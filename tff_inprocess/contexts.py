"""The execution context that runs every TFF computation in this process."""

import asyncio
import contextlib
import functools
import gc
import hashlib
import itertools
import numbers
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.support.text import messages
from tff_inprocess import analysis, clients, programs, randomness, threads, values

_Tensors = Sequence[tf.Tensor]


class InProcessContext(tff.framework.SyncContext):
  """Runs TFF computations by the TensorFlow of this process.

  A computation is compiled at its first call, and what was compiled goes with it. Sums are made in
  the order of the clients: the same seed gives the same bits, for any number of concurrent clients.

  Random numbers that clients draw in TensorFlow (dropout, stochastic quantisation) follow from
  seed, the number of the call, and the client's place in it. Those at the server come from the
  operating system in each call, so that noise that is drawn there cannot be told from a seed;
  no seed changes that. Noise that clients draw themselves, as in distributed differential
  privacy, can be told from seed: leave it out where that matters.

  An error of an operation, or of a function that makes a client's data, is told only by its type
  and place: its own words may quote clients' values.

  Attributes:
    clients_at: place where clients are trained.
    show_client_errors: see below.

  Args:
    seed: None takes a secret one from the operating system.
    max_concurrent_clients: None for as many as processors and memory allow.
    default_num_clients: where a computation has clients that its argument does
      not say the number of.
    clients_at: place where clients are trained; None for threads of this process.
    show_client_errors: whether the process in which an operation fails prints all words of the
      error to its stderr; only for debugging, as they may quote clients' values.
  """

  def __init__(
    self,
    *,
    seed: int | None = None,
    max_concurrent_clients: int | None = None,
    default_num_clients: int = 0,
    clients_at: clients.Clients | None = None,
    show_client_errors: bool = False,
  ):
    if max_concurrent_clients is not None and max_concurrent_clients < 1:
      raise ValueError(
        f'max_concurrent_clients must be at least 1 or None, got {max_concurrent_clients!r}'
      )
    if default_num_clients < 0:
      raise ValueError(f'default_num_clients must be at least 0, got {default_num_clients!r}')
    if seed is not None and not isinstance(seed, numbers.Integral):
      raise ValueError(f'seed must be a whole number or None, got {seed!r}')
    self._key = os.urandom(16) if seed is None else b'%d' % seed
    self.clients_at = clients_at or clients.Threads(max_concurrent_clients)
    self.show_client_errors = show_client_errors
    self._default_num_clients = default_num_clients
    self._arrays = values.Arrays()
    self._calls = itertools.count()
    self._number: int | None = None
    self._stop = threads.Stop()

  def stop(self) -> None:
    """Ends the call that is under way, and all to come, with a RuntimeError.

    It may be called in any thread; nothing is left that had to be ended.
    """
    self._stop.ask()
    self.clients_at.end()

  def status(self) -> str:
    """Returns the actors and blocks of a cluster for a progress line; '' in process."""
    return self.clients_at.status()

  @contextlib.contextmanager
  def numbered(self, number: int) -> Iterator[None]:
    """Numbers the calls in the block, so that repeated calls draw the same.

    Without it, calls that have clients are counted from 0.
    """
    before, self._number = self._number, number
    try:
      yield
    finally:
      self._number = before

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Runs a computation; see `tff.framework.SyncContext`.

    Raises:
      UnsupportedComputationError: naming a part that cannot run in process.
      TypeError: for an argument of another type.
    """
    self._stop.check()
    program = _PROGRAMS.of(comp)
    of = comp.type_signature
    call = _Call(
      program, self._arrays, self._default_num_clients, self._stop, self.show_client_errors
    )
    if of.parameter is not None:
      call.take_argument(arg, of.parameter)
    number = 0
    if program.has_clients:
      number = next(self._calls) if self._number is None else self._number
    call.run(functools.partial(_client_seed, self._key, number), self.clients_at)
    return values.assembled(of.result, call.results(), self._arrays)


def use(made: InProcessContext) -> None:
  """Makes every TFF computation run in a context from now on."""
  tff.framework.set_default_context(made)
  gc.collect()  # TFF's own context complains where it is left to the exit.


@contextlib.contextmanager
def installed(made: InProcessContext) -> Iterator[InProcessContext]:
  """Makes every TFF computation of this thread run in a context within the block."""
  with tff.framework.get_context_stack().install(made):
    yield made


@contextlib.contextmanager
def within(made: InProcessContext) -> Iterator[InProcessContext]:
  """Makes every TFF computation of this thread run in a context, which the block's end stops."""
  try:
    with installed(made):
      yield made
  finally:
    made.stop()


class AsyncInProcessContext(tff.framework.AsyncContext):
  """Context for `tff.program.NativeFederatedContext` and asynchronous programs."""

  def __init__(self, context: InProcessContext):
    self._context = context

  async def invoke(self, comp: Any, arg: Any) -> Any:
    if asyncio.iscoroutine(arg):
      arg = await arg
    return await asyncio.to_thread(self._context.invoke, comp, arg)


class _Programs:
  """Compiled programs of computations, kept for as long as these live.

  A program does not depend on the context that runs it, so all contexts share one
  object of this class.
  """

  def __init__(self):
    self._lock = threading.RLock()
    # By identity: comparing computations would serialise their graphs.
    self._known: dict[int, tuple[weakref.ref, programs.Program]] = {}

  def of(self, comp: Any) -> programs.Program:
    with self._lock:
      known = self._known.get(id(comp))
      if known is None:
        key = id(comp)
        program = programs.build(comp)
        forget = lambda _: self._known.pop(key, None)
        known = self._known[key] = weakref.ref(comp, forget), program
      return known[1]


_PROGRAMS = _Programs()


class _Call:
  """One call of a program, with the values known so far."""

  def __init__(
    self,
    program: programs.Program,
    arrays: values.Arrays,
    default_num_clients: int,
    stop: threads.Stop,
    show_errors: bool,
  ):
    self._program, self._arrays, self._stop = program, arrays, stop
    self._show_errors = show_errors
    self._num_clients: int | None = None
    self._default_num_clients = default_num_clients
    self._shared: dict[str, _Tensors] = {}
    self._of_client: dict[str, list[Any]] = {}

  def take_argument(self, arg: Any, of: tff.Type) -> None:
    parameter = self._program.parameter
    for path, value, of_part in values.parts_of_argument(arg, of):
      name = analysis.input_name(parameter, path)
      if not analysis.is_per_client(of_part):
        member = analysis.member_of(of_part)
        try:
          self._shared[name] = values.tensors(value, member, self._arrays)
        except TypeError as error:
          where = f'{_named(of, path)}{values.misfit(value, member, self._arrays)}'
          raise TypeError(
            f'{where or "argument"}: {messages.one_line(error, 160)}; was it made for another'
            ' model, strategy or memory?'
          ) from error
        continue
      if not isinstance(value, (list, tuple)):
        raise TypeError(
          f'expected a list, a value of type {of_part.member} for each client,'
          f' got {messages.kind(value)}'
        )
      if self._num_clients not in (None, len(value)):
        raise ValueError(f'arguments are for {self._num_clients} and for {len(value)} clients')
      self._num_clients = len(value)
      self._of_client[name] = list(value)

  @property
  def num_clients(self) -> int:
    if self._num_clients is None:
      return self._default_num_clients
    return self._num_clients

  def run(self, client_seed: Callable[[int, int], np.ndarray], where: clients.Clients) -> None:
    """Runs all stages."""
    for index, stage in enumerate(self._program.stages):
      if stage.server is not None:
        seed, known = randomness.secret_seed(), self._shared.__getitem__
        self._shared.update(stage.server(seed, known, show_errors=self._show_errors))
      if stage.client is not None:
        self._run_clients(stage, stage.client, functools.partial(client_seed, index), where)

  def _run_clients(
    self,
    stage: programs.Stage,
    step: programs.Step,
    seed: Callable[[int], np.ndarray],
    where: clients.Clients,
  ) -> None:
    part = analysis.part_of
    zeros = {
      part(name, analysis.BLOCK): self._shared.pop(part(name, analysis.ZERO)) for name in stage.sums
    }
    # A database is one for all clients, and they take slices of it.
    sent = [n for n in step.takes if n in self._shared and n not in self._program.databases]
    own = [name for name in step.takes if name in self._of_client]
    named = self._program.named
    merge = stage.merge
    merge_takes = merge.takes if merge else ()
    work = clients.Work(
      step=step,
      merge=merge,
      num_clients=self.num_clients,
      zeros=zeros,
      shared={name: self._shared[name] for name in step.takes if name in self._shared},
      merged_with={name: self._shared[name] for name in merge_takes if name in self._shared},
      own={name: self._of_client[name] for name in own},
      types={name: named[name].member for name in own if named[name].block is None},
      arrays=self._arrays,
      seed=seed,
      model_bytes=sum(values.num_bytes(self._shared[name]) for name in sent),
      show_errors=self._show_errors,
    )
    with contextlib.closing(where.groups(work, self._stop)) as groups:
      trained = work.merged(groups)
    for name in stage.keeps:
      self._of_client[name] = [kept[name] for kept in trained.kept]
    self._shared.update(
      {
        part(name, analysis.TOTAL): trained.totals[part(name, analysis.BLOCK)]
        for name in stage.sums
      }
    )

  def results(self) -> Iterator[Any]:
    """Yields the tensors of each part of the result."""
    for name in self._program.results:
      if self._program.named[name].per_client:
        yield self._of_client.get(name, [])
      else:
        yield self._shared[name]


def _named(of: tff.Type, path: Sequence[int]) -> str:
  """Name of a part of an argument, such as `state` or `1`."""
  names = []
  for index in path:
    name, of = tff.structure.to_elements(of)[index]
    names.append(str(index) if name is None else name)
  return '.'.join(names)


def _client_seed(key: bytes, number: int, stage: int, client: int) -> np.ndarray:
  """Seeds of what a client draws and, secret, of what is drawn where it is added up."""
  digest = hashlib.sha256(b'%s %d %d %d' % (key, number, stage, client)).digest()
  return np.frombuffer(digest[:16] + os.urandom(16), '<i8')
