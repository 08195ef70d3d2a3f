"""Check the connection to a cluster: packages, SSH, certificates, and the scheduler."""

from __future__ import annotations

import shlex
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from engine import __version__
from engine.cluster.certificates import SOON_DAYS, check_peer, days_left, faults
from engine.config.schema import Config
from engine.doctor.finding import Finding, run

_CONNECT_S = 5.0
_SSH_S = 15.0


def cluster(config: Config | None) -> Finding:
    """Check that the engine's certificate is valid, and that the scheduler's certificate names its host."""
    name = "cluster"
    if config is None or config.cluster is None:
        return Finding(name, "ok", "no [cluster] in the config: this machine judges the kernels")
    from importlib.util import find_spec

    missing = [package for package in ("distributed", "cryptography") if find_spec(package) is None]
    if missing:
        return Finding(name, "fail", f"missing packages: {', '.join(missing)}", "pip install 'kernel-tui[cluster]'")
    directory, address = config.cluster.certificates, config.cluster.scheduler
    if directory is None or address is None:
        return _ssh(config.cluster.hosts, config.cluster.command)
    if found := faults(directory, "engine"):
        what, _, remedy = found[0].partition("; ")
        return Finding(name, "fail", what, remedy)
    place = urlsplit(address)
    host, port = place.hostname or "", place.port or 0
    again = f"kernel-tui cluster certs {shlex.quote(str(directory))} --host {host}"
    try:
        check_peer(directory, "engine", host, port, _CONNECT_S)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message or str(error)
        return Finding(name, "fail", f"the engine rejects the certificate of {address}: {why}", f"renew it: {again}")
    except ssl.SSLError as error:
        return Finding(
            name,
            "fail",
            f"no TLS connection to {address}: {error.reason}",
            f"on {host}, type: kernel-tui cluster scheduler",
        )
    except (OSError, socket.gaierror) as error:
        return Finding(
            name,
            "warn",
            f"the scheduler {address} does not answer: {error.strerror or error}",
            f"a search waits for the scheduler; on {host}, type: kernel-tui cluster scheduler",
        )
    left = days_left(directory, "engine")
    if left < SOON_DAYS:
        return Finding(name, "warn", f"the engine's certificate expires in {left:.0f} days", f"renew it: {again}")
    return Finding(name, "ok", f"the scheduler {address} answers; the certificates are valid for {left:.0f} days")


def _ssh(hosts: Sequence[str], command: str) -> Finding:
    """Check that SSH reaches the hosts without a password, and that they have the same version of kernel-tui."""
    name = "cluster"
    for host in hosts:
        asked = run(["ssh", "-o", "BatchMode=yes", host, f"{command} --version"], _SSH_S)
        if asked is None:
            return Finding(name, "fail", f"SSH did not reach {host} within {_SSH_S:g} s", f"check: ssh {host} true")
        if asked.returncode:
            why = (asked.stderr.strip().splitlines() or ["no message"])[-1]
            remedy = (
                f"check: ssh {host} {command} --version; "
                f"or set the `command` key in [cluster] to kernel-tui's path on {host}"
            )
            return Finding(name, "fail", f"{host}: {why}", remedy)
        if __version__ not in asked.stdout:
            there = asked.stdout.strip()
            return Finding(
                name,
                "fail",
                f"{host} has {there}, but this machine has {__version__}",
                f"install kernel-tui {__version__} on {host}",
            )
    return Finding(name, "ok", f"SSH reaches {', '.join(hosts)}; kernel-tui {__version__} is installed there")
