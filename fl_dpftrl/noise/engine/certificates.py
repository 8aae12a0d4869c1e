"""Certificates by which noise workers and runs know each other, in PEM files."""

import dataclasses
import datetime
import ipaddress
import os
import pathlib
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import Sequence

from fl_dpftrl import files, json_files

WORKER, RUN = 'worker', 'run'
AUTHORITY_NAME = 'authority.pem'
MISSING = (
  'noise workers need gRPC, and certificates for a try-out the package cryptography: install both'
  " with `pip install 'fl_dpftrl[workers]'`"
)
_MOST_BYTES = 2**20  # of a file
_DAYS = 90  # that certificates for a try-out are valid
_LEEWAY = datetime.timedelta(hours=1)  # between the clocks of two machines
_HOST = re.compile(r'[A-Za-z0-9]([A-Za-z0-9._-]{0,250}[A-Za-z0-9])?')


@dataclasses.dataclass(frozen=True)
class Certificates:
  """The certificates of one side of a connection: its own, and those that it accepts.

  Each side accepts every certificate that the authority signed for the other side's purpose:
  TLS client for runs, TLS server with the name that the run calls it by for workers. So the
  authority must be one for the run's noise alone.

  Attributes:
    authority: PEM file with the certificate of the authority.
    certificate: PEM file with the own certificate, and those between it and the authority.
    key: PEM file with its private key, without a passphrase.

  Raises:
    ValueError: naming the file that cannot be read, is no PEM file, or does not fit the others.
  """

  authority: pathlib.Path
  certificate: pathlib.Path
  key: pathlib.Path

  def __post_init__(self):
    for path, marker, what in [
      (self.authority, b'-----BEGIN CERTIFICATE-----', 'a certificate'),
      (self.certificate, b'-----BEGIN CERTIFICATE-----', 'a certificate'),
      (self.key, b'PRIVATE KEY-----', 'a private key'),
    ]:
      if marker not in _content(path):
        raise ValueError(f'{path} is not {what} in PEM')
    self._fill(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))

  def worker_context(self) -> ssl.SSLContext:
    """TLS 1.3 of a worker, which demands a certificate of whoever connects."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0
    context.set_alpn_protocols(['h2'])
    self._fill(context)
    return context

  def contents(self) -> tuple[bytes, bytes, bytes]:
    """The authority's certificate, the own private key and the own certificate."""
    return _content(self.authority), _content(self.key), _content(self.certificate)

  def _fill(self, context: ssl.SSLContext) -> None:
    try:
      context.load_verify_locations(self.authority)
    except (ssl.SSLError, OSError) as error:
      raise ValueError(f'{self.authority} holds no certificate: {_reason(error)}') from error
    try:
      # Without a passphrase OpenSSL would ask the terminal for one.
      context.load_cert_chain(self.certificate, self.key, password=lambda: '')
    except (ssl.SSLError, OSError, ValueError) as error:
      raise ValueError(
        f'{self.key} is not the private key, without a passphrase, of {self.certificate}:'
        f' {_reason(error)}'
      ) from error


def read(folder: str | os.PathLike[str], role: str) -> Certificates:
  """The certificates of a side, in a folder that `make` made or one like it.

  Args:
    folder: folder with authority.pem, and worker.pem and worker.key or run.pem and run.key.
    role: WORKER or RUN.

  Raises:
    ValueError: as for `Certificates`.
  """
  folder = pathlib.Path(folder)
  return Certificates(folder / AUTHORITY_NAME, folder / f'{role}.pem', folder / f'{role}.key')


def chosen(
  role: str,
  prefix: str,
  folder: str | None,
  authority: str | None,
  certificate: str | None,
  key: str | None,
) -> Certificates:
  """The certificates that flags name: a folder, or each file.

  Args:
    role: WORKER or RUN.
    prefix: of the flags' names.
    folder, authority, certificate, key: values of the flags; None where they are not given.

  Raises:
    ValueError: naming the flags that are missing or too many, and as for `Certificates`.
  """
  each = {
    f'--{prefix}authority_file': authority,
    f'--{prefix}certificate_file': certificate,
    f'--{prefix}key_file': key,
  }
  missing = [flag for flag, value in each.items() if not value]
  if folder and len(missing) < len(each):
    raise ValueError(f'--{prefix}certificates is in place of {", ".join(each)}: give either')
  if folder:
    return read(folder, role)
  if missing:
    raise ValueError(
      f'{", ".join(missing)} missing: give --{prefix}certificates=FOLDER,'
      f' which `fl-dpftrl noise_worker --certificates=FOLDER` makes, or {", ".join(each)}'
    )
  return Certificates(*(pathlib.Path(value) for value in each.values() if value))


def make(folder: str | os.PathLike[str], names: Sequence[str]) -> None:
  """Makes a folder of certificates for a try-out, which only its owner can read.

  They are valid for 90 days. The private key of their authority is forgotten, so that nobody
  can make more of them. A folder that another process makes meanwhile is left as it is.

  Args:
    folder: does not exist.
    names: hosts or addresses by which runs reach the workers, next to localhost and this
      machine's name.

  Raises:
    ValueError: for a name that will not do, or without the package cryptography.
    OSError: where the folder cannot be made.
  """
  for name in names:
    if not _HOST.fullmatch(name) and not _is_ip(name):
      raise ValueError(f'{name!r} is not the name or address of a machine')
  folder = pathlib.Path(folder)
  folder.parent.mkdir(parents=True, exist_ok=True)
  temporary = pathlib.Path(tempfile.mkdtemp(prefix=files.TEMPORARY_PREFIX, dir=folder.parent))
  try:
    every = ['localhost', '127.0.0.1', '::1', socket.gethostname(), *names]
    for name, content in _made([n for n in dict.fromkeys(every) if n]).items():
      files.write_durably(temporary / name, content, private=True)
    try:
      os.rename(temporary, folder)
    except OSError:
      if not (folder / AUTHORITY_NAME).exists():
        raise
  finally:
    shutil.rmtree(temporary, ignore_errors=True)


def _made(names: Sequence[str]) -> dict[str, bytes]:
  """The files of `make`, by name."""
  try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509 import oid
  except ImportError as error:
    raise ValueError(MISSING) from error
  now = datetime.datetime.now(datetime.timezone.utc)
  authority_key = ec.generate_private_key(ec.SECP256R1())
  called = lambda text: x509.Name([x509.NameAttribute(oid.NameOID.COMMON_NAME, text)])
  authority = called(f'fl_dpftrl noise {os.urandom(4).hex()}')
  usage = lambda *allowed: x509.KeyUsage(
    **{
      name: name in allowed
      for name in (
        'digital_signature',
        'content_commitment',
        'key_encipherment',
        'data_encipherment',
        'key_agreement',
        'key_cert_sign',
        'crl_sign',
        'encipher_only',
        'decipher_only',
      )
    }
  )
  identifier = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())

  def signed(subject, key, extensions):
    builder = x509.CertificateBuilder(
      issuer_name=authority,
      subject_name=subject,
      public_key=key.public_key(),
      serial_number=x509.random_serial_number(),
      not_valid_before=now - _LEEWAY,
      not_valid_after=now + datetime.timedelta(days=_DAYS),
    )
    for extension, is_critical in extensions:
      builder = builder.add_extension(extension, is_critical)
    certificate = builder.sign(authority_key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.PEM)

  found = {
    AUTHORITY_NAME: signed(
      authority,
      authority_key,
      [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (usage('key_cert_sign', 'crl_sign'), True),
        (identifier, False),
      ],
    )
  }
  alternatives = x509.SubjectAlternativeName(
    [x509.IPAddress(ipaddress.ip_address(n)) if _is_ip(n) else x509.DNSName(n) for n in names]
  )
  for role, purpose, more in [
    (WORKER, oid.ExtendedKeyUsageOID.SERVER_AUTH, [(alternatives, False)]),
    (RUN, oid.ExtendedKeyUsageOID.CLIENT_AUTH, []),
  ]:
    key = ec.generate_private_key(ec.SECP256R1())
    found[f'{role}.key'] = key.private_bytes(
      serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    found[f'{role}.pem'] = signed(
      called(role),
      key,
      [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (usage('digital_signature'), True),
        (x509.ExtendedKeyUsage([purpose]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
        *more,
      ],
    )
  return found


def _content(path: pathlib.Path) -> bytes:
  try:
    return json_files.read_bytes(path, most_bytes=_MOST_BYTES)
  except OSError as error:
    raise ValueError(f'{path}: {error.strerror or error}') from error
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from error


def _is_ip(text: str) -> bool:
  try:
    ipaddress.ip_address(text)
  except ValueError:
    return False
  return True


def _reason(error: Exception) -> str:
  return getattr(error, 'reason', None) or getattr(error, 'strerror', None) or str(error)
