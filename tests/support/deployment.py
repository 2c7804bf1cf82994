"""Real `sfumato serve` processes for end-to-end tests: started, killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import trainer_pb2
from sfumato_client import Addresses, Client, Connection, Cursor, Event, Finished

EMOJI = Path(__file__).parents[2] / "examples" / "emoji"
NOTHING: Mapping[str, str] = MappingProxyType({})


class ServeProcess:
    """One `sfumato serve`, on one data folder and, once it has one, one port."""

    def __init__(
        self,
        data_dir: Path,
        *,
        only: Sequence[str] = (),
        environment: Mapping[str, str] = NOTHING,
    ) -> None:
        self._data_dir = data_dir
        self._only = only
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "SFUMATO_DATASETS_IMPORT_ROOTS": str(EMOJI.parent),
            **environment,
        }
        self._port = "0"
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> str:
        """Starts it and answers its address once it is ready."""
        command = [sys.executable, "-m", "sfumato_client.cli.main", "serve"]
        command += ["--data-dir", str(self._data_dir), "--port", self._port]
        for name in self._only:
            command += ["--only", name]
        with (self._data_dir / "serve.log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment
            )
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        assert ready, (self._data_dir / "serve.log").read_text()
        self.address = ready.split()[-1]
        self._port = self.address.rpartition(":")[2]
        return self.address

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; answers the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, signal_number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(signal_number)
        code = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return code

    def workers(self, service: str) -> list[int]:
        """Process ids of the live workers of a service of this deployment."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            ours = any(word.startswith(str(self._data_dir)) for word in words)
            if f"sfumato_{service}.worker" in words and ours and state != "Z":
                found.append(int(entry.name))
        return found

    def kill_workers(self, service: str) -> None:
        """SIGKILL to every live worker of a service."""
        for pid in self.workers(service):
            os.kill(pid, signal.SIGKILL)


def client_of(address: str) -> Client:
    """A client of everything at one address."""
    return Client(Connection(addresses=Addresses.all_at(address)))


def training_request(
    *, model: str, dataset: str = "emoji", steps: int = 60, **configuration: object
) -> trainer_pb2.CreateTrainingRunRequest:
    """A short run on a tiny model."""
    request = trainer_pb2.CreateTrainingRunRequest()
    request.configuration.base_model.directory.path = model
    request.configuration.dataset = dataset
    request.configuration.resolution = 64
    request.configuration.train_steps = steps
    request.configuration.learning_rate = 1e-2
    request.configuration.rank = 4
    for name, value in configuration.items():
        setattr(request.configuration, name, value)
    return request


async def import_emoji(client: Client) -> None:
    """Imports the example pictures as `emoji`."""
    source = imports_pb2.FolderSource(path=EMOJI.name)
    created = await client.datasets.create_import(
        imports_pb2.CreateImportRequest(dataset="emoji", folder=source)
    )
    ended = await client.datasets.wait_import(created.import_job.name)
    assert ended.status.state == job_pb2.JOB_STATE_SUCCEEDED, ended


async def follow_run(
    client: Client,
    name: str,
    on_event: Callable[[trainer_pb2.TrainingRunEvent], Awaitable[None]] | None = None,
) -> tuple[list[trainer_pb2.TrainingRunEvent], trainer_pb2.TrainingRun]:
    """Every event of a run from the first, and the run as `finished` told it."""
    events: list[trainer_pb2.TrainingRunEvent] = []
    async for item in client.trainer.watch_training_run(name, cursor=Cursor(replay=True)):
        match item:
            case Event(event=event):
                events.append(event)
                if on_event is not None:
                    await on_event(event)
            case Finished(resource=run):
                return events, run
    raise AssertionError("the watch ended without its end")


def check_numbers(events: Sequence[trainer_pb2.TrainingRunEvent]) -> None:
    """Sequences are 1..n without gap or repeat."""
    sequences = [event.header.sequence for event in events]
    assert sequences == list(range(1, len(events) + 1))


def kinds(events: Sequence[trainer_pb2.TrainingRunEvent]) -> Counter[str]:
    """How many events of each kind."""
    return Counter(str(event.WhichOneof("event")) for event in events)
