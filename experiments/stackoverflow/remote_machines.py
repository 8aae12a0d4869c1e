"""Machines that compute a run."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
  """Machines that compute a run; changing them does not change its result.

  Attributes:
    address: host:port of the head of a Ray cluster that trains clients, or 'auto'; None to
      train them in this process.
    actors: number of processes that train clients there; 0 for as many as fit.
    clients_per_actor: clients that such a process trains at the same time.
    actor_cpus, actor_gpus: processors and GPUs of such a process.
    noise_machines: processes of the cluster that make the noise; 0 to make it here.
    insecure_network: whether a cluster of other machines may do without token and TLS.
    concurrent_clients: clients that train here at the same time; 0 for as many as processors and
      memory allow. Each takes several times the model's memory.
  """

  address: str | None = None
  actors: int = 0
  clients_per_actor: int = 1
  actor_cpus: float = 1.0
  actor_gpus: float = 0.0
  noise_machines: int = 0
  insecure_network: bool = False
  concurrent_clients: int = 0

  def __post_init__(self):
    for flag, value, least in (
      ('actors', self.actors, 0),
      ('clients_per_actor', self.clients_per_actor, 1),
      ('actor_cpus', self.actor_cpus, 0),
      ('actor_gpus', self.actor_gpus, 0),
      ('noise_machines', self.noise_machines, 0),
      ('max_concurrent_clients', self.concurrent_clients, 0),
    ):
      if not least <= value < float('inf'):
        raise ValueError(f'--{flag}={value} must be at least {least}')
    if self.address is None:
      for field in dataclasses.fields(self):
        if field.name not in ('address', 'concurrent_clients'):
          if getattr(self, field.name) != field.default:
            raise ValueError(f'--{field.name} is for the Ray cluster that --machines names')
    elif self.concurrent_clients:
      raise ValueError(
        '--max_concurrent_clients is for this process; with --machines give --clients_per_actor'
      )
