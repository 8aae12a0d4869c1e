"""Public bundles: what may be published of a bundle, and commitments to the rest.

The log and the digests of its rounds stay out: anyone who knows nearly all devices of a round
could guess the others until a digest matches. Of each chained digest H_t, the public bundle has a
commitment instead, HMAC-SHA-256 under a salt that stays as secret as the log.
"""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import private_checks, strategy_files, writing
from fl_dpftrl.files import durable, json_files, paths
from fl_dpftrl.replaying import publication
from fl_dpftrl.text import messages


class PublicBundle(NamedTuple):
  """A public bundle that was written.

  Attributes:
    digest: SHA-256 of its manifest, in hexadecimal, which may be published.
    salt: salt of its commitments, in hexadecimal, which is as secret as the log.
  """

  digest: str
  salt: str


def write_public_bundle(
  folder: str | os.PathLike[str],
  bundle: str | os.PathLike[str],
  *,
  salt: str | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> PublicBundle:
  """Writes the public form of a bundle, which is verified first.

  It has the strategies, the arguments, n, b and k of each log, the publishable statement, and a
  commitment to the chained digest of each round. It has no device id, no count of devices and no
  digest of the log. The folder appears whole or not at all.

  Args:
    folder: the folder to write, which must not exist yet; its parent must.
    bundle: the bundle that `write_bundle` wrote.
    salt: 32 hexadecimal digits that never served before, but for the report for publication of
      the same replay; None for fresh random ones.
    progress: see `replay`.

  Raises:
    ValueError: for a folder that exists, a salt of another form, and a bundle that is none or
      does not fit.
    LogError: if a log cannot be believed.
    OSError: if a folder cannot be read or written.
  """
  folder = paths.local(folder)
  writing.check_folder(folder)
  salt = secrets.token_hex(publication.SALT_BYTES) if salt is None else salt
  raw = parse_salt(salt)
  source = private_checks.examine(checks_lib.opened(bundle), None, progress)
  if not source.fits or source.statement is None:
    failed = ', '.join(check.name for check in source.checks if not check.passed)
    raise ValueError(f'bundle {str(bundle)!r} does not fit, so it is not published: {failed}')
  with durable.building(folder) as temporary:
    for place, facts in enumerate(source.statement.runs, 1):
      lines = ''.join(f'{line}\n' for line in commitments(source, place, raw))
      durable.write_durably(temporary / manifest_lib.commitments_name(place), lines.encode())
      strategy_files.save(temporary / manifest_lib.strategy_name(place), facts)
    content = json.dumps(statement(source, raw), indent=2, allow_nan=False) + '\n'
    durable.write_durably(temporary / manifest_lib.STATEMENT, content.encode())
    digest = manifest_lib.write(
      temporary,
      manifest_lib.PUBLIC_FORMAT,
      source.bundle.manifest.guarantee,
      map(manifest_lib.Run.published, source.runs),
      private=False,
    )
    writing.check_folder(folder)
  return PublicBundle(digest, salt)


def parse_salt(salt: str) -> bytes:
  """Returns the bytes of a salt; ValueError unless it has 32 hexadecimal digits."""
  if not re.fullmatch(rf'[0-9a-fA-F]{{{2 * publication.SALT_BYTES}}}', salt):
    digits = 2 * publication.SALT_BYTES
    raise ValueError(f'salt={messages.quoted(salt)} must be {digits} hexadecimal digits')
  return bytes.fromhex(salt)


def commitments(source: private_checks.Examined, place: int, salt: bytes) -> Iterator[str]:
  """Yields the commitment to each chained digest of a run, which is counted from 1.

  It is HMAC-SHA-256 under the salt, of the run, the round and the digest, one a line.
  """
  with open(source.bundle.folder / manifest_lib.rounds_name(place), encoding='ascii') as stream:
    for t, line in enumerate(stream):
      yield hmac.new(salt, f'{place}\n{t}\n{line}'.encode(), hashlib.sha256).hexdigest()


def statement(source: private_checks.Examined, salt: bytes) -> json_files.Object:
  """Returns the publishable statement of a bundle that fits, with its commitment."""
  if source.statement is None:
    raise ValueError('a bundle that does not fit has no statement')
  public = publication.publishable(publication.committed(source.statement, salt))
  return writing.document(public, source.bundle.folder)
