"""One MLflow run for one session. Only this module imports ``mlflow``; it runs in a separate process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from engine.tracking.measurements import Point

BATCH = 900
"""Maximum number of metrics per request. MLflow's servers accept at most 1000 metrics per request."""
PARAMETERS = 90
"""Maximum number of parameters per request. MLflow's servers accept at most 100 parameters per request."""
TAG = "kernel_tui.session"
"""Tag that contains the session's identity. After a resume, the engine uses the tag to find the session's run."""
_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # The sender itself tries again.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


class MlflowRun:
    """An MLflow run on the tracking server at ``uri``. All methods raise ``MlflowException`` or ``OSError`` if the
    server fails.
    """

    def __init__(self, uri: str, experiment: str) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        self._client: Any = MlflowClient(tracking_uri=uri)
        self._experiment = experiment
        self.id = ""

    def open(self, known: str, session: str, name: str, started: int, tags: Mapping[str, str]) -> bool:
        """Open the session's run, or create it. Return whether the run is new.

        ``known`` is the run's id, or "" if the id is unknown. ``session`` identifies the session. ``started`` is the
        session's creation time, in Unix milliseconds.
        """
        found = self._client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(self._experiment)
        self.id = known
        if not known:
            runs = self._client.search_runs([experiment], f"tags.`{TAG}` = '{session}'", max_results=1)
            self.id = runs[0].info.run_id if runs else ""
        if self.id:
            self._client.update_run(self.id, status="RUNNING")
            return False
        run = self._client.create_run(experiment, start_time=started, tags={TAG: session, **tags}, run_name=name)
        self.id = run.info.run_id
        return True

    def log_parameters(self, parameters: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        found = [Param(name, value) for name, value in parameters.items()]
        for start in range(0, len(found), PARAMETERS):
            self._client.log_batch(self.id, params=found[start : start + PARAMETERS])

    def log_metrics(self, points: Sequence[Point]) -> None:
        """Log at most ``BATCH`` metrics. The server ignores metrics that it already has."""
        from mlflow.entities import Metric

        self._client.log_batch(self.id, metrics=[Metric(one.name, one.value, one.time, one.step) for one in points])

    def log_text(self, text: str, path: str) -> None:
        self._client.log_text(self.id, text, path)

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED."""
        self._client.set_terminated(self.id, status=status)
