"""Verification of bundles: all that can be is computed again and compared.

Nothing inside a bundle can show that all of it was not forged together. Only the digest of its
manifest, kept elsewhere, can. That of a public bundle may be published.
"""

import os
import re
from collections.abc import Callable

from fl_dpftrl.bundles import checks as checks_lib
from fl_dpftrl.bundles import manifest as manifest_lib
from fl_dpftrl.bundles import private_checks, public_checks, publishing
from fl_dpftrl.bundles.checks import Verification
from fl_dpftrl.text import messages


def verify(
  folder: str | os.PathLike[str],
  *,
  digest: str | None = None,
  private: str | os.PathLike[str] | None = None,
  salt: str | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> Verification:
  """Checks a bundle that `write_bundle` or `write_public_bundle` wrote.

  Args:
    folder: the bundle.
    digest: SHA-256 of its manifest from elsewhere, in hexadecimal; None if there is none.
    private: for a public bundle, the bundle with the logs that it is to be compared with.
    salt: the salt of the public bundle's commitments, in hexadecimal; goes with `private`.
    progress: see `replay`.

  Raises:
    ValueError: for a folder that is no bundle, a manifest that cannot be read, and a bundle
      that has links, folders or other things than files; for `private` without `salt`, and for
      either with a bundle that is not public.
    OSError: if a folder cannot be read.
  """
  if digest is not None and not re.fullmatch('[0-9a-fA-F]{64}', digest):
    raise ValueError(f'digest={messages.quoted(digest)} must be 64 hexadecimal digits')
  if (private is None) != (salt is None):
    raise ValueError('private and salt go together: a public bundle is compared with both')
  bundle, caveat = checks_lib.opened(folder), None
  if bundle.manifest.public:
    compared = None
    if private is not None and salt is not None:
      raw = publishing.parse_salt(salt)
      source = private_checks.examine(checks_lib.opened(private), None, progress)
      compared = public_checks.compare(bundle, source, raw)
    checks = public_checks.examine(bundle, digest, compared)
    same = compared is not None and compared.passed
    caveat = public_checks.COMPARED if same else public_checks.CAVEAT
  elif private is not None:
    raise ValueError(f'{bundle.folder}: private and salt are for a public bundle, and it is none')
  else:
    checks = private_checks.examine(bundle, digest, progress).checks
  return Verification(
    digest=bundle.digest,
    compared=digest is not None,
    checks=checks,
    made_with=dict(bundle.manifest.packages),
    checked_with=dict(manifest_lib.packages()),
    caveat=caveat,
  )
