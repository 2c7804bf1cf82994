"""The process that trains: ``python -m sfumato_trainer.worker FILE``.

It holds torch and nothing of the service. What it does is in ``stages``; here it is tied to the worker
channel: events go out, orders come in, published files become blobs.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import diffusers
import transformers

from sfumato_chassis import unexpected_errors
from sfumato_chassis.blobs import BlobFolder
from sfumato_chassis.errors import JobFailure, Reason
from sfumato_chassis.failpoints import Failpoint, from_environment
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.logging import configure_logging, get_logger, log_context
from sfumato_chassis.worker_session import WorkerLink, WorkerSession
from sfumato_trainer.events import Event, Failed, Preparing, Progress, Published
from sfumato_trainer.settings import TrainingPlan
from sfumato_trainer.stages.reporter import Command, LeaseLostError
from sfumato_trainer.stages.run import run_training

PROGRESS_SECONDS = 0.2
"""Shortest time between two events of progress; what lies between them is not told."""
EXIT_FENCED = 3

REASONS: Mapping[str, Reason] = {
    "ADAPTER_REFUSED": Reason.MODEL_UNSUPPORTED,
    "CHECKPOINT_AT_TARGET": Reason.CHECKPOINT_MISMATCH,
    "CHECKPOINT_IDENTITY": Reason.CHECKPOINT_MISMATCH,
    "CHECKPOINT_MISMATCH": Reason.CHECKPOINT_MISMATCH,
    "CHECKPOINT_MISSING": Reason.CHECKPOINT_MISSING,
    "CONDITIONING_NOT_FINITE": Reason.LOSS_NOT_FINITE,
    "GRADIENT_NOT_FINITE": Reason.LOSS_NOT_FINITE,
    "LOSS_NOT_FINITE": Reason.LOSS_NOT_FINITE,
    "MODEL_NOT_FOUND": Reason.MODEL_LOAD_FAILED,
    "MODEL_UNREADABLE": Reason.MODEL_LOAD_FAILED,
    "OUT_OF_MEMORY": Reason.MEMORY_EXCEEDED,
    "RESOLUTION_NOT_MULTIPLE": Reason.MODEL_UNSUPPORTED,
    "RESOLUTION_TOO_LARGE": Reason.MODEL_UNSUPPORTED,
    "SAMPLE_DAMAGED": Reason.BLOB_CORRUPT,
    "SAMPLE_MISSING": Reason.BLOB_CORRUPT,
    "SAMPLE_UNREADABLE": Reason.FILES_REFUSED,
    "DISK_FULL": Reason.DISK_FULL,
    "UNKNOWN_FAMILY": Reason.MODEL_UNSUPPORTED,
    "UNSUPPORTED_PRECISION": Reason.MODEL_UNSUPPORTED,
    "WEIGHTS_UNSAFE": Reason.WEIGHTS_UNSAFE,
}
"""Public reason of each of the stages' failures."""

log = get_logger(__name__)


class ChannelReporter:
    """Implements :class:`sfumato_trainer.stages.reporter.Reporter` on the worker channel."""

    def __init__(
        self,
        plan: TrainingPlan,
        session: WorkerSession,
        blobs: BlobFolder,
        failpoint: Failpoint,
    ) -> None:
        self._plan = plan
        self._session = session
        self._blobs = blobs
        self._failpoint = failpoint
        self._told_progress = float("-inf")

    def emit(self, event: Event) -> None:
        """Reports an event. Progress is told at most five times a second, its end always.

        Raises:
            LeaseLostError: The service gave the run to another worker.
        """
        if self._session.fenced:
            raise LeaseLostError
        if is_between(event):
            if time.monotonic() - self._told_progress < PROGRESS_SECONDS:
                return
            self._told_progress = time.monotonic()
        if isinstance(event, Published):
            self._store(event)
            return
        self._session.emit(self._plan.run, self._plan.fence, event.kind, event_data(event))

    def command(self) -> Command:
        """The newest order. Raises LeaseLostError like :meth:`emit`."""
        if self._session.fenced:
            raise LeaseLostError
        match self._session.command(self._plan.run):
            case "stop":
                return "stop"
            case "cancel":
                return "cancel"
            case "drain":
                return "drain"
            case _:
                return "none"

    def may_publish(self) -> bool:
        """Whether the run is still this worker's."""
        return not self._session.fenced

    def failpoint(self, name: str) -> None:
        """Passes the place ``name``."""
        self._failpoint(name)

    def _store(self, published: Published) -> None:
        """Makes blobs of the published files, before the event that names them."""
        folder = self._plan.work_directory / "published"
        files = [(folder / "adapter.safetensors", published.adapter)]
        if published.ema_adapter is not None:
            files.append((folder / "ema" / "adapter.safetensors", published.ema_adapter))
        for path, artifact in files:
            stored = self._blobs.put(path)
            if stored != f"sha256:{artifact.digest}":
                raise OSError(f"{path.name} changed while it was stored")


def is_between(event: Event) -> bool:
    """Whether an event tells of a step on the way; the next one makes up for it."""
    match event:
        case Progress(step=step, total=total):
            return step < total
        case Preparing(done=done, total=total):
            return 0 < done < total
        case _:
            return False


def event_data(event: Event) -> Mapping[str, Any]:
    """An event's fields as the log holds them: full digests, failures by public reason."""
    if isinstance(event, Failed):
        details = {"code": event.code, "step": str(event.step)}
        if event.samples:
            details["samples"] = ", ".join(event.samples)[:200]
        failure = JobFailure(
            reason=REASONS[event.code],
            message=event.message,
            error_id=event.error_id,
            details=details,
        )
        return failure.to_json()
    data = dataclasses.asdict(event)
    for record in (data, data.get("adapter"), data.get("ema_adapter")):
        if record is not None and "digest" in record:
            record["digest"] = f"sha256:{record['digest']}"
    return data


def main(configuration_file: Path) -> int:
    """Runs one attempt; answers the exit code, 0 unless the run was given to another worker."""
    configuration = json.loads(configuration_file.read_text(encoding="utf-8"))
    configure_logging(level="info", json_lines=True)
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.disable_progress_bar()
    plan = TrainingPlan.from_json(configuration["plan"])
    failpoint = from_environment(os.environ)
    blobs = BlobFolder(Path(configuration["blobs"]), new_name=random_name, failpoint=failpoint)
    session = WorkerSession(WorkerLink.of(configuration["link"]), outlives_service=True)
    session.start()
    reporter = ChannelReporter(plan, session, blobs, failpoint)
    with log_context(job=plan.run, attempt=plan.attempt):
        try:
            outcome = run_training(
                plan, reporter, blob_path=lambda digest: blobs.path(f"sha256:{digest}")
            )
            log.info("attempt ended", result=outcome.result, step=outcome.step)
        except Exception as error:  # noqa: BLE001 - the boundary, where it is logged
            failure = JobFailure.of(unexpected_errors.report(error, "unexpected error"))
            session.emit(plan.run, plan.fence, "failed", failure.to_json())
    session.flush()
    return EXIT_FENCED if session.fenced else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
