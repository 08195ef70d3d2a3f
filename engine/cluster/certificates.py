"""Certificates of a cluster: create them, check them, and pass them to Dask.

A cluster trusts one certificate authority (CA). The scheduler, workers and engines each present a certificate from this
CA, and each side checks the other's. A certificate directory contains ``ca.pem``, ``ROLE.pem`` and ``ROLE-key.pem``.
"""

from __future__ import annotations

import datetime
import ipaddress
import platform
import shlex
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from engine.session.store.paths import replace_file

if TYPE_CHECKING:
    from cryptography import x509

Role = Literal["scheduler", "worker", "engine"]
ROLES: tuple[Role, ...] = get_args(Role)
DAYS = 365
"""Default validity of new certificates, in days."""
SOON_DAYS = 30
"""``doctor`` warns about certificates that expire within this number of days."""
_CA, _CA_KEY = "ca.pem", "ca-key.pem"
_COMMON_NAME = "kernel-tui {}"
_DASK_ROLE = {"scheduler": "scheduler", "worker": "worker", "engine": "client"}


class CertificateError(Exception):
    """Certificates are missing or invalid, or cannot be written. The message says what to type."""


def files(directory: Path, role: Role) -> tuple[Path, Path, Path]:
    """Return the paths of the CA's certificate, the role's certificate and its key."""
    return directory / _CA, directory / f"{role}.pem", directory / f"{role}-key.pem"


def create(directory: Path, hosts: Sequence[str], days: int = DAYS) -> list[Path]:
    """Create a certificate for each role. Create a CA, unless ``directory`` has one that outlives the certificates.

    Other hosts refuse the certificates of a new CA until they get its ``ca.pem``.

    Args:
        directory: Created if missing. Only the user can read the keys.
        hosts: Names and IP addresses of the hosts to list in the certificates. If empty, new certificates list the
        hosts of the old certificates or, without old certificates, this machine.
        days: Validity of the certificates. A new CA is valid ten times as long.

    Returns:
        The files written.

    Raises:
        CertificateError: A host name is invalid, a CA file exists but cannot be read, a file cannot be written, or the
        cryptography package is missing.
    """
    x509, hashes, ec, serialization = _cryptography()
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)  # Hosts' clocks may differ by minutes.
    certificates: dict[Path, Any] = {}
    keys: dict[Path, Any] = {}
    authority, authority_key = _usable_ca(directory, now + datetime.timedelta(days=days))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if authority is None:
            authority_key = ec.generate_private_key(ec.SECP256R1())
            name = _name("CA")
            authority = (
                _builder(name, name, authority_key, now, 10 * days)
                .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
                .add_extension(_usage(is_ca=True), critical=True)
                .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
                .sign(authority_key, hashes.SHA256())
            )
            certificates[directory / _CA] = authority
        listed = [_host_name(host) for host in hosts] or _host_names(directory) or [_host_name(platform.node())]
        names = x509.SubjectAlternativeName(list(dict.fromkeys((*listed, _host_name("localhost")))))
        for role in ROLES:
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = (
                _builder(_name(role), authority.subject, key, now, days)
                .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
                .add_extension(_usage(is_ca=False), critical=True)
                .add_extension(names, critical=False)
                .add_extension(
                    x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
                )
                .sign(authority_key, hashes.SHA256())
            )
            _, certificate_file, key_file = files(directory, role)
            certificates[certificate_file], keys[key_file] = certificate, key
        if directory / _CA in certificates:
            keys[directory / _CA_KEY] = authority_key
        # Write the CA's key last: after an interruption, no key matches the CA, and the next run creates another CA.
        for file, one in certificates.items():
            replace_file(file, one.public_bytes(serialization.Encoding.PEM))
        for file, key in keys.items():
            replace_file(file, _key_bytes(key), mode=0o600)
    except OSError as error:
        raise CertificateError(f"cannot write {error.filename}: {error.strerror}; choose another directory") from None
    return [*certificates, *keys]


def security(directory: Path, role: Role) -> Any:
    """Return Dask's ``Security`` for a role: mutual TLS 1.3 or later, and never plain TCP.

    Raises ``CertificateError`` if :func:`faults` finds a fault.
    """
    if found := faults(directory, role):
        raise CertificateError("; ".join(found))
    from distributed.security import Security

    authority, certificate, key = map(str, files(directory, role))
    dask_role = _DASK_ROLE[role]
    return Security(
        require_encryption=True,
        tls_ca_file=authority,
        tls_min_version=ssl.TLSVersion.TLSv1_3,
        **{f"tls_{dask_role}_cert": certificate, f"tls_{dask_role}_key": key},
    )


def faults(directory: Path, role: Role, now: datetime.datetime | None = None) -> list[str]:
    """Return the faults of a role's certificate, each as a sentence with the remedy; [] if it is valid."""
    again = f"create new certificates: {_command(directory)}"
    missing = [file.name for file in files(directory, role) if not file.is_file()]
    if missing:
        return [
            f"{directory} lacks {', '.join(missing)}; copy the files there from the host that created them, or {again}"
        ]
    authority_file, certificate_file, key_file = files(directory, role)
    try:
        authority, certificate, key = _load(authority_file), _load(certificate_file), _load_key(key_file)
    except CertificateError as error:
        return [str(error)]
    now = now or datetime.datetime.now(datetime.UTC)
    found = [
        f"{file} {problem}; check this host's clock ({now:%Y-%m-%d %H:%M} UTC), or {again}"
        for file, one in ((authority_file, authority), (certificate_file, certificate))
        if (problem := _date_problem(one, now))
    ]
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # cryptography raises several unrelated exceptions.
        found.append(
            f"{authority_file} did not issue {certificate_file}; copy both from the same directory, or {again}"
        )
    if certificate.public_key() != key.public_key():
        found.append(f"{key_file} does not belong to {certificate_file}; copy both from the same directory, or {again}")
    if certificate.subject != _name(role):
        wanted = _COMMON_NAME.format(role)
        found.append(f"{certificate_file} belongs to {_subject(certificate)!r}, not to {wanted!r}; {again}")
    return found


def days_left(directory: Path, role: Role) -> float:
    """Return the number of days until the role's certificate or the CA's expires, whichever comes first.

    Raises ``CertificateError``.
    """
    ends = min(_load(file).not_valid_after_utc for file in files(directory, role)[:2])
    return float((ends - datetime.datetime.now(datetime.UTC)).total_seconds() / 86400)


def check_peer(directory: Path, role: Role, host: str, port: int, timeout_s: float) -> None:
    """Connect to a scheduler, and check that its certificate comes from the cluster's CA and names ``host``.

    Dask itself does not check names. Raises ``ssl.SSLError`` and ``OSError``.
    """
    import socket

    authority, certificate, key = files(directory, role)
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=str(authority))
    context.load_cert_chain(certificate, key)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with socket.create_connection((host, port), timeout_s) as plain, context.wrap_socket(plain, server_hostname=host):
        pass


def _date_problem(certificate: x509.Certificate, now: datetime.datetime) -> str:
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise CertificateError(
            "certificates need the cryptography package. Install it: pip install 'kernel-tui[cluster]' (from a "
            "checkout: '.[cluster]')"
        ) from None
    return x509, hashes, ec, serialization


def _name(whose: str) -> Any:
    x509, *_ = _cryptography()
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _COMMON_NAME.format(whose))])


def _subject(certificate: x509.Certificate) -> str:
    return certificate.subject.rfc4514_string().removeprefix("CN=")


def _host_name(host: str) -> Any:
    x509, *_ = _cryptography()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError:
        raise CertificateError(f"{host!r} is neither a host name nor an IP address; correct the name") from None


def _host_names(directory: Path) -> list[Any]:
    """Return the hosts that the scheduler's certificate lists; [] if there is no readable certificate."""
    x509, *_ = _cryptography()
    _, file, _ = files(directory, "scheduler")
    try:
        return list(_load(file).extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except CertificateError:
        return []


def _usage(*, is_ca: bool) -> Any:
    x509, *_ = _cryptography()
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    signs = {"digital_signature": not is_ca, "key_cert_sign": is_ca, "crl_sign": is_ca, "decipher_only": False}
    return x509.KeyUsage(**signs, **dict.fromkeys(others, False))


def _builder(subject: Any, issuer: Any, key: Any, begins: datetime.datetime, days: int) -> Any:
    x509, *_ = _cryptography()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=days))
    )


def _key_bytes(key: Any) -> bytes:
    _, _, _, serialization = _cryptography()
    no_password = serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password))


def _usable_ca(directory: Path, until: datetime.datetime) -> tuple[Any, Any]:
    """Return the CA's certificate and key. Return None for both if a file is missing or damaged, if the files do not
    match, or if the CA expires before ``until``. Raises ``CertificateError`` for a file that this user cannot read.
    """
    try:
        authority, key = _load(directory / _CA), _load_key(directory / _CA_KEY)
    except CertificateError as error:
        if isinstance(error.__context__, OSError) and not isinstance(error.__context__, FileNotFoundError):
            raise
        return None, None
    fits = authority.public_key() == key.public_key() and authority.not_valid_after_utc >= until
    return (authority, key) if fits else (None, None)


def _command(directory: Path) -> str:
    """Return the command that creates the certificates in ``directory``."""
    return f"kernel-tui cluster certs {shlex.quote(str(directory))}"


def _load(file: Path) -> Any:
    x509, *_ = _cryptography()
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except OSError as error:
        raise CertificateError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise CertificateError(f"{file} is not a PEM certificate; create it again: {_command(file.parent)}") from None


def _load_key(file: Path) -> Any:
    _, _, _, serialization = _cryptography()
    try:
        return serialization.load_pem_private_key(file.read_bytes(), None)
    except OSError as error:
        raise CertificateError(f"cannot read {file}: {error.strerror}") from None
    except (ValueError, TypeError):
        raise CertificateError(f"{file} is not a PEM key; create it again: {_command(file.parent)}") from None
