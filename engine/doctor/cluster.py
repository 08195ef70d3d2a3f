"""Check the connection to a cluster: packages, certificates, and the scheduler."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from engine.cluster.certificates import SOON_DAYS, check_peer, days_left, faults
from engine.config.schema import Config
from engine.doctor.finding import Finding

_CONNECT_S = 5.0


def cluster(config: Config | None) -> Finding:
    """Check that the engine's certificate is valid, and that the scheduler answers with one that names its host."""
    name = "cluster"
    if config is None or config.cluster is None:
        return Finding(name, "ok", "not configured: this machine judges")
    from importlib.util import find_spec

    missing = [package for package in ("distributed", "cryptography") if find_spec(package) is None]
    if missing:
        return Finding(name, "fail", f"{' and '.join(missing)} missing", "pip install 'kernel-tui[cluster]'")
    directory, address = config.cluster.certificates, config.cluster.scheduler
    if found := faults(directory, "engine"):
        what, _, remedy = found[0].partition("; ")
        return Finding(name, "fail", what, remedy)
    place = urlsplit(address)
    host, port = place.hostname or "", place.port or 0
    again = f"kernel-tui cluster certs {directory} --host {host}"
    try:
        check_peer(directory, "engine", host, port, _CONNECT_S)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message or str(error)
        return Finding(name, "fail", f"{address}: its certificate is not accepted: {why}", f"renew it there: {again}")
    except ssl.SSLError as error:
        return Finding(
            name, "fail", f"{address}: no TLS connection: {error.reason}", "start kernel-tui cluster scheduler there"
        )
    except (OSError, socket.gaierror) as error:
        return Finding(
            name,
            "warn",
            f"{address} does not answer: {error.strerror or error}",
            "start kernel-tui cluster scheduler there; a search waits for it",
        )
    left = days_left(directory, "engine")
    if left < SOON_DAYS:
        return Finding(name, "warn", f"the engine's certificate expires in {left:.0f} days", f"renew it: {again}")
    return Finding(name, "ok", f"{address} answers; certificates valid for {left:.0f} days")
