"""Machines that compute a run."""

import dataclasses

from experiments.stackoverflow import configuration


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machines:
  """Machines that compute a run, by flags; changing them does not change its result."""

  address: str | None = configuration.flag(
    None,
    "host:port of the head of a Ray cluster that trains the clients, or 'auto' for the one that"
    ' RAY_ADDRESS names or that runs on this machine. Without it, they train in this process.',
    name='machines',
  )
  actors: int = configuration.flag(
    0, 'Processes of --machines that train clients; 0 for as many as it has room for.'
  )
  clients_per_actor: int = configuration.flag(
    1, 'Clients that a process of --machines trains at the same time.'
  )
  actor_cpus: float = configuration.flag(
    1.0, 'Processors of a process of --machines; may be a fraction.'
  )
  actor_gpus: float = configuration.flag(
    0.0, 'GPUs of a process of --machines; may be a fraction, such as 0.25.'
  )
  noise_machines: int = configuration.flag(
    0,
    'Processes of --machines that make the noise, each a slice of every row, for buffers that do'
    ' not fit into one machine; they see its seed. 0 makes it in this process.',
  )
  insecure_network: bool = configuration.flag(
    False,
    'Accept --machines on a network without token and TLS: whoever reaches its ports can run'
    ' programs there, so the network must be private.',
  )
  max_concurrent_clients: int = configuration.flag(
    0,
    'Clients trained at the same time in this process, each of which takes several times the'
    " model's memory; 0 for as many as processors and memory allow.",
  )

  def __post_init__(self):
    for name in (
      *('actors', 'clients_per_actor', 'actor_cpus', 'actor_gpus'),
      *('noise_machines', 'max_concurrent_clients'),
    ):
      value, least = getattr(self, name), int(name == 'clients_per_actor')
      if not least <= value < float('inf'):
        raise ValueError(f'--{name}={value} must be at least {least}')
    if self.address is None:
      for field in dataclasses.fields(self):
        if field.name not in ('address', 'max_concurrent_clients'):
          if getattr(self, field.name) != field.default:
            raise ValueError(f'--{field.name} is for the Ray cluster that --machines names')
    elif self.max_concurrent_clients:
      raise ValueError(
        '--max_concurrent_clients is for this process; with --machines give --clients_per_actor'
      )


configuration.define_flags(Machines)


def from_flags() -> Machines:
  """Returns the machines that parsed flags give."""
  return Machines(**configuration.parsed_flags(Machines))
