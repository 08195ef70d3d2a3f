"""The process that sends a session's events to its tracker: ``python -m engine.tracking.sender DIRECTORY``.

The sender follows the event log while an engine runs, and sends the remaining events after the engine has ended. If the
sender cannot reach the tracker, it tries again. If it gives up, the next engine's sender sends the remaining events. At
most one sender per session runs at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import time
from pathlib import Path

from engine.config.schema import TrackingConfig, load_config
from engine.session.records.events import StopReason
from engine.session.state.session_state import SessionState
from engine.session.store import SessionError, SessionPaths, SessionReader, engine_liveness
from engine.tracking.measurements import Measurements, Point, parameters_of
from engine.tracking.mlflow_run import BATCH, MlflowRun
from engine.tracking.outbox import load_outbox, save_outbox

POLL_S = 1.0
RETRY_S = 5.0
"""Seconds between two attempts to reach the tracker."""
GIVE_UP_S = 120.0
"""Seconds that a sender keeps trying to reach the tracker after the engine has ended."""
NICENESS = 10
_ENDS: dict[StopReason | None, str] = {"error": "FAILED", "signal": "KILLED", None: "KILLED"}
"""The run's final status, by the engine's stop reason (None: the engine died). Other stop reasons mean FINISHED."""
_log = logging.getLogger("tracking")


class Sender:
    """Send one session's events to a tracker."""

    def __init__(self, paths: SessionPaths, config: TrackingConfig) -> None:
        assert config.mlflow is not None
        self._paths = paths
        self._outbox = load_outbox(paths, config.mlflow)
        self._run = MlflowRun(config.mlflow, config.experiment)
        self._measured = Measurements()
        self._waiting: list[tuple[int, Point]] = []
        """Unsent metrics, each with the number of its event."""
        self._opened = False
        self._saved = self._outbox.seq

    @property
    def state(self) -> SessionState:
        return self._measured.state

    def read(self, reader: SessionReader) -> None:
        """Read the new events."""
        for recorded in reader.read(self.state.seq):
            points = self._measured.take(recorded)
            if recorded.seq > self._outbox.seq:
                self._waiting += [(recorded.seq, point) for point in points]

    def send(self, reader: SessionReader) -> None:
        """Send all unsent metrics and kernels. Raises mlflow's error or ``OSError`` if the tracker does not answer."""
        if not self.state.created_at:
            return
        if not self._opened:
            self._open(reader)
        while self._waiting:
            count = min(BATCH, len(self._waiting))
            self._run.log_metrics([point for _, point in self._waiting[:count]])
            sent, self._waiting = self._waiting[:count], self._waiting[count:]
            # An event's metrics may be in two batches. Unless both arrive, the next sender sends the event again.
            last = sent[-1][0]
            self._outbox.seq = last if not self._waiting or self._waiting[0][0] != last else last - 1
            self._save()
        self._send_best(reader)

    def finish(self) -> None:
        """Record how the search ended."""
        engine = self.state.engine
        self._run.end(_ENDS.get(engine.stopped if engine is not None else None, "FINISHED"))

    def _open(self, reader: SessionReader) -> None:
        state = self.state
        identity = f"{state.name} {state.created_at:.6f} {state.seed}"
        devices = ", ".join(sorted({one.name for one in state.devices.values()}))
        tags = {"kernel_tui.version": state.version, "kernel_tui.devices": devices}
        started = int(state.created_at * 1000)
        self._run.open(self._outbox.run, identity, self._paths.name, started, tags)
        self._run.log_parameters(parameters_of(reader.text(state.config)))  # MLflow accepts the same values again.
        self._outbox.run = self._run.id
        self._save()
        self._opened = True

    def _send_best(self, reader: SessionReader) -> None:
        for problem in self.state.problems.values():
            best = self.state.variants.get(problem.best or "")
            if best is None or self._outbox.best.get(problem.id) == best.id:
                continue
            self._run.log_text(reader.text(best.source), f"best/{problem.id}.{best.language}")
            self._outbox.best[problem.id] = best.id
            self._save()

    def _save(self) -> None:
        save_outbox(self._paths, self._outbox)


def main(directory: Path) -> None:
    """Follow the session until its engine has ended and the tracker has all metrics."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    os.nice(NICENESS)
    paths = SessionPaths.at(directory)
    with (paths.directory / "tracking.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # An earlier engine's sender may still be running.
        sender = Sender(paths, load_config(paths.config).tracking)
        with SessionReader(paths) as reader:
            _follow(paths, reader, sender)


def _follow(paths: SessionPaths, reader: SessionReader, sender: Sender) -> None:
    trouble, ended_at = "", None
    while True:
        running = engine_liveness(paths, reader).running  # Check first, so as not to miss the last events.
        ended_at = None if running else ended_at or time.monotonic()
        try:
            sender.read(reader)
            sender.send(reader)
            if not running:
                sender.finish()
                _log.info("the tracker has all metrics")
                return
            if trouble:
                _log.info("the tracker is reachable again")
            trouble, pause = "", POLL_S
        except SessionError as error:  # A person moved or deleted the session.
            _log.error("%s", error)
            return
        except Exception as error:  # MLflow raises errors of several libraries.
            said = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            if said != trouble:
                _log.warning("cannot reach the tracker; the sender tries again every %g s: %s", RETRY_S, said)
            trouble, pause = said, RETRY_S
        if ended_at is not None and time.monotonic() - ended_at > GIVE_UP_S:
            _log.warning("the sender gave up; to send the remaining metrics, resume the session")
            return
        time.sleep(pause)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
