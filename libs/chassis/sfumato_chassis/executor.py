"""Starts worker processes. The seam behind which one machine or many do the work."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from sfumato_chassis.process import ProcessIdentity, identify, is_alive, kill, wait_for_exit

NUM_LOGS_KEPT = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSpec:
    """What a worker is started with.

    Attributes:
        worker_id: Made by the service.
        module: Run as ``python -m module CONFIGURATION_FILE``.
        configuration: Frozen; written there as JSON that only this user can read.
        configuration_file: Whoever asked for the worker removes it.
        log_folder: Of the worker's log; the newest few that lie there are kept.
    """

    worker_id: str
    module: str
    configuration: Mapping[str, Any]
    configuration_file: Path
    log_folder: Path


class Executor(Protocol):
    """Starts workers and knows whether they live."""

    async def start(self, spec: WorkerSpec) -> ProcessIdentity:
        """Starts a worker in a session of its own and returns at once."""
        ...

    def is_alive(self, worker: ProcessIdentity) -> bool:
        """Whether a worker that this or an earlier executor started still runs."""
        ...

    async def wait(self, worker: ProcessIdentity) -> None:
        """Returns when the worker is gone."""
        ...

    def kill(self, worker: ProcessIdentity) -> None:
        """Ends a worker at once; one that is gone is no error."""
        ...

    def hand_on(self, file: IO[Any]) -> None:
        """Lets every worker that is started from now on hold ``file`` open for as long as it lives."""
        ...


class LocalExecutor:
    """Worker processes on this machine: started anew, never forked from the service's state."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._handed_on: list[IO[Any]] = []

    async def start(self, spec: WorkerSpec) -> ProcessIdentity:
        spec.configuration_file.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(spec.configuration_file, flags, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(spec.configuration, file, allow_nan=False)
        environment = dict(os.environ)
        if self._threads:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        spec.log_folder.mkdir(parents=True, exist_ok=True)
        remove_old_logs(spec.log_folder, num_kept=NUM_LOGS_KEPT - 1)
        with (spec.log_folder / f"{spec.worker_id}.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: ASYNC220 - returns once the program is started
                # -P: what lies in the working folder is not imported.
                [sys.executable, "-P", "-m", spec.module, str(spec.configuration_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                pass_fds=[file.fileno() for file in self._handed_on],
            )
        self._children[child.pid] = child
        return identify(child.pid)

    def is_alive(self, worker: ProcessIdentity) -> bool:
        return is_alive(worker)

    async def wait(self, worker: ProcessIdentity) -> None:
        await wait_for_exit(worker)
        child = self._children.pop(worker.pid, None)
        if child is not None:
            child.wait()

    def kill(self, worker: ProcessIdentity) -> None:
        kill(worker)

    def hand_on(self, file: IO[Any]) -> None:
        self._handed_on.append(file)


def remove_old_logs(folder: Path, *, num_kept: int) -> None:
    """Removes all but the newest logs of a folder."""
    logs = sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime_ns, reverse=True)
    for log in logs[num_kept:]:
        log.unlink()
