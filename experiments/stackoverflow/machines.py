"""Machines that compute a run."""

import dataclasses

from fl_dpftrl import addresses
from fl_dpftrl.noise.engine import certificates, shards

RUNTIMES = ('in_process', 'worker')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
  """Machines that compute a run; changing them does not change its result.

  Attributes:
    workers: host:port of each process that trains clients; empty to train here.
    noise_workers: host:port of each process that makes noise; empty to make it
      in this process.
    noise_certificates: certificates by which the noise workers and this process
      know each other.
    insecure_network: whether workers may be on a network, where what they are
      sent is neither encrypted nor authenticated.
    worker_timeout: how many seconds a worker may take for its part of a round,
      and a noise worker may give no sign while its part of a row is waited for.
    concurrent_clients: clients that train here at the same time; 0 for as many
      as processors and memory allow. Each takes several times the model's
      memory.
    runtime: runtime that trains clients here, 'in_process' or TFF's 'worker'.

  Raises:
    ValueError: naming the flag, and what would do.
  """

  workers: tuple[str, ...] = ()
  noise_workers: tuple[str, ...] = ()
  noise_certificates: certificates.Certificates | None = None
  insecure_network: bool = False
  worker_timeout: float = shards.TIMEOUT_SECONDS
  concurrent_clients: int = 0
  runtime: str = 'in_process'

  def __post_init__(self):
    if self.runtime not in RUNTIMES:
      raise ValueError(f'--runtime={self.runtime} is unknown; known are {", ".join(RUNTIMES)}')
    if self.concurrent_clients < 0:
      raise ValueError(f'--max_concurrent_clients={self.concurrent_clients} must be at least 0')
    shards.check_timeout('--worker_timeout', self.worker_timeout)
    for flag, texts in (
      ('worker_addresses', self.workers),
      ('noise_worker_addresses', self.noise_workers),
    ):
      try:
        found = addresses.parse_all(texts)
        if flag == 'worker_addresses' and not self.insecure_network:
          addresses.check_loopback(found, '--insecure_network')
      except ValueError as error:
        raise ValueError(f'--{flag}: {error}') from error
