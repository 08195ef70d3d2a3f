"""Check that searches can send their metrics to the config's MLflow server."""

from __future__ import annotations

import urllib.error
import urllib.request
from http.client import HTTPException
from importlib.util import find_spec

from engine.config.schema import Config
from engine.doctor.finding import Finding

_ANSWER_S = 5.0


def tracking(config: Config | None) -> Finding:
    """Check that the MLflow server answers. A search can start without the server and send the metrics later."""
    name = "tracking"
    address = config.tracking.mlflow if config is not None else None
    if address is None:
        return Finding(name, "ok", "no [tracking] in the config: a search does not send metrics")
    if find_spec("mlflow") is None:
        return Finding(
            name,
            "warn",
            "MLflow is not installed, so a search cannot send metrics",
            "pip install 'kernel-tui[tracking]'",
        )
    if not address.startswith(("http://", "https://")):
        return Finding(name, "ok", f"MLflow writes to {address}, without a server")
    why = _refusal(f"{address.rstrip('/')}/health")
    if why is None:
        return Finding(name, "ok", f"the MLflow server {address} answers")
    remedy = "start the server, or correct the `mlflow` key in [tracking]; a search keeps trying to send its metrics"
    return Finding(name, "warn", f"the MLflow server {address} does not answer: {why}", remedy)


def _refusal(address: str) -> str | None:
    """Return the reason why ``address`` did not answer; None if it did. A server that requires a login (HTTP status 401
    or 403) has answered.
    """
    try:
        with urllib.request.urlopen(address, timeout=_ANSWER_S):
            return None
    except urllib.error.HTTPError as error:
        return None if error.code in (401, 403) else f"HTTP status {error.code}"
    except urllib.error.URLError as error:
        reason = error.reason
        return (reason.strerror or str(reason)) if isinstance(reason, OSError) else str(reason)
    except (OSError, ValueError, HTTPException) as error:
        return f"{type(error).__name__}: {error}" if isinstance(error, HTTPException) else str(error)
