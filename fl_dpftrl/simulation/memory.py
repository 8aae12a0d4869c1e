"""Memory that a simulated population takes, compared with what is free."""

import resource

_BYTES_A_DEVICE = 64  # of rates, speeds, timers and habits
_FREE = 'MemAvailable:'


def check(num_devices: int) -> None:
  """Raises ValueError where there is not the memory for so many devices."""
  needed, free = _BYTES_A_DEVICE * num_devices, available()
  if free is not None and needed > free:
    raise ValueError(
      f'num_devices={num_devices} need about {needed / 2**30:.1f} GiB of memory and'
      f' {free / 2**30:.1f} GiB are free; at most {free // _BYTES_A_DEVICE} devices would do'
    )


def available() -> int | None:
  """Bytes that this process may still take; None where that is not known."""
  try:
    with open('/proc/meminfo', encoding='ascii') as lines:
      (free,) = [line.split()[1] for line in lines if line.startswith(_FREE)]
  except (OSError, ValueError):
    return None
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  size = 1024 * int(free)
  return size if limit == resource.RLIM_INFINITY else min(size, limit)
