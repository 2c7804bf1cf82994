"""A worker that computes nothing: run as `python -m tiny_worker FILE`, it does what it is told."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from sfumato_chassis.worker_session import WorkerLink, WorkerSession

EXIT_FENCED = 3
EXIT_DRAINED = 4
POLL_SECONDS = 0.01


def emit_steps(session: WorkerSession, configuration: dict[str, Any]) -> int:
    """Emits numbered steps, one every few milliseconds, and ends when all are in the log."""
    job, fence = configuration["job"], configuration["fence"]
    for number in range(1, configuration["num_steps"] + 1):
        session.emit(job, fence, "step", {"number": number})
        time.sleep(configuration["step_seconds"])
        if session.fenced:
            return EXIT_FENCED
    return 0 if session.flush() else EXIT_FENCED


def follow_orders(session: WorkerSession, configuration: dict[str, Any]) -> int:
    """Tells every order that it gets, and ends with `stop` or when its lease has lapsed."""
    job, fence, known = configuration["job"], configuration["fence"], "none"
    session.emit(job, fence, "ready", {})
    while known not in {"stop", "drain"}:
        time.sleep(POLL_SECONDS)
        order = session.command(job)
        if order != known:
            known = order
            session.emit(job, fence, "ordered", {"order": order})
    if session.lease_lapsed:
        return EXIT_DRAINED
    session.flush()
    return 0


def ignore_orders(session: WorkerSession, configuration: dict[str, Any]) -> int:
    """Says that it is there, and goes on for ever."""
    session.emit(configuration["job"], configuration["fence"], "ready", {})
    while True:
        time.sleep(POLL_SECONDS)


def take_work(session: WorkerSession, configuration: dict[str, Any]) -> int:
    """Does each item that it is given until it is told to stop."""
    while session.command("") not in {"stop", "drain"}:
        work = session.next_work(POLL_SECONDS)
        if work is not None:
            session.emit(work.job, work.fence, "did", dict(work.configuration))
    session.flush()
    return 0


def main(file: Path) -> int:
    configuration = json.loads(file.read_text())
    link = WorkerLink.of(configuration["link"])
    session = WorkerSession(link, outlives_service=configuration["outlives_service"])
    session.start()
    parts = {part.__name__: part for part in (emit_steps, follow_orders, ignore_orders, take_work)}
    return parts[configuration["part"]](session, configuration)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
