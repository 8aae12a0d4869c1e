"""Logs, forgeries and checks that tests of bundles share."""

import hashlib
import json
import os

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.logs import noise_record

STRATEGY = dpftrl.BLT([0.99, 0.7], [0.1, 0.3])
NUM_ROUNDS = 24
ROWS = sorted((t, f'phone {i}') for i in range(30) for t in range(i % 6, NUM_ROUNDS, 6))
METADATA = noise_record.run_metadata(STRATEGY, 2.0, clip_norm=1.0)
SALT = '0f' * 16


def write_log(path, rows=ROWS, num_rounds=NUM_ROUNDS, metadata=METADATA):
  dpftrl.write_log(
    path,
    rounds=[t for t, _ in rows],
    device_ids=[device for _, device in rows],
    num_rounds=num_rounds,
    metadata=metadata,
  )
  return path


def failed(folder, **arguments):
  """Returns the checks that failed, by name."""
  checks = dpftrl.verify(folder, **arguments).checks
  return {check.name: ' '.join(check.found) for check in checks if not check.passed}


def forge(folder, change=lambda manifest: None):
  """Changes the manifest, then corrects the digests of all files, as a forger would."""
  path = folder / manifest_lib.NAME
  manifest = json.loads(path.read_text())
  change(manifest)
  for name in manifest['files']:
    content = (folder / name).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    manifest['files'][name] = {'bytes': len(content), 'sha256': digest}
  content = (json.dumps(manifest, indent=2) + '\n').encode()
  path.write_bytes(content)
  (folder / manifest_lib.SEAL).write_bytes(manifest_lib.seal(content))


def edit(folder, change, name=manifest_lib.STATEMENT):
  """Changes a JSON file of a bundle, the statement if none is named, and forges the rest."""
  path = folder / name
  document = json.loads(path.read_text())
  change(document)
  path.write_text(json.dumps(document))
  forge(folder)


def random_change(folder, rng):
  """Makes one random change in a bundle; returns the name of the file."""
  names = sorted(os.listdir(folder))
  name = names[rng.integers(len(names))]
  path = folder / name
  content = bytearray(path.read_bytes())
  place = int(rng.integers(len(content)))
  kind = rng.integers(6)
  if kind == 0:
    content[place] ^= 1 << int(rng.integers(8))
  elif kind == 1:
    content[place] = int((content[place] + rng.integers(1, 256)) % 256)
  elif kind == 2:
    del content[place:]
  elif kind == 3:
    content.insert(place, int(rng.integers(256)))
  elif kind == 4:
    path.unlink()
    return name
  else:
    name = f'log-1-{rng.integers(2, 99)}.parquet'
    path = folder / name
  path.write_bytes(content)
  return name
