"""Training runs and the adapters that they publish."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from sfumato.blobs.v1 import blobs_pb2_grpc
from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from sfumato_client.blobs import Blobs
from sfumato_client.calls import Caller, RetryPolicy, with_request_id
from sfumato_client.channel import ChannelPair
from sfumato_client.jobs import JobCalls, duration, pages
from sfumato_client.watch import Cursor, Reconnecting, WatchItem


class Trainer:
    """Training runs and the adapters that they publish.

    Every method answers proto messages and raises SfumatoError.

    Attributes:
        stub: the service's methods, to be called as they are.
        caller: makes the calls.
        blobs: BlobService of this service.
    """

    def __init__(self, channels: ChannelPair, caller: Caller, watch_policy: RetryPolicy) -> None:
        """Makes no call."""
        self.stub = trainer_pb2_grpc.TrainerServiceStub(channels.unary)
        self.caller = caller
        self.blobs = Blobs(stub=blobs_pb2_grpc.BlobServiceStub(channels.unary), caller=caller)
        self._training_runs = _calls(
            self.stub, trainer_pb2_grpc.TrainerServiceStub(channels.watch), caller, watch_policy
        )

    async def create_training_run(
        self, request: trainer_pb2.CreateTrainingRunRequest
    ) -> trainer_pb2.CreateTrainingRunResponse:
        """Asks for a training run and answers the queued job. Without a request id it makes one."""
        return await self.caller.repeatable(self.stub.CreateTrainingRun, with_request_id(request))

    async def get_training_run(self, name: str) -> trainer_pb2.TrainingRun:
        """The job as it stands."""
        return await self._training_runs.get(name)

    def list_training_runs(
        self, *, page_size: int = 0
    ) -> AsyncGenerator[trainer_pb2.TrainingRun, None]:
        """Newest first, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListTrainingRuns,
                trainer_pb2.ListTrainingRunsRequest(page_size=page_size, page_token=page_token),
            ),
            lambda page: page.training_runs,
        )

    async def wait_training_run(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> trainer_pb2.TrainingRun:
        """Waits until the job has ended, or for the time given; "not done" is no error."""
        return await self._training_runs.wait(name, timeout_seconds)

    def watch_training_run(
        self,
        name: str,
        *,
        cursor: Cursor | None = None,
        on_reconnecting: Callable[[Reconnecting], None] | None = None,
    ) -> AsyncGenerator[WatchItem[trainer_pb2.TrainingRun, trainer_pb2.TrainingRunEvent], None]:
        """Follows the job: each event once, in order, across lost connections (`Watch.items`)."""
        return self._training_runs.watch(name, cursor, on_reconnecting)

    async def cancel_training_run(self, name: str) -> trainer_pb2.TrainingRun:
        """Ends a run: its checkpoints stay, nothing is published."""
        return await self._training_runs.cancel(name)

    async def delete_training_run(self, name: str) -> None:
        """Removes a job that has ended, with its log. After a loss it is not repeated."""
        await self.caller.once(
            self.stub.DeleteTrainingRun, trainer_pb2.DeleteTrainingRunRequest(name=name)
        )

    async def stop_training_run(self, name: str) -> trainer_pb2.TrainingRun:
        """Ends a run early with a result: it saves a checkpoint and publishes its adapter."""
        response = await self.caller.repeatable(
            self.stub.StopTrainingRun, trainer_pb2.StopTrainingRunRequest(name=name)
        )
        return response.training_run

    async def get_adapter(self, name: str) -> trainer_pb2.Adapter:
        """An adapter by its own name."""
        return await self._get_adapter(trainer_pb2.GetAdapterRequest(name=name))

    async def get_adapter_of_run(self, training_run: str) -> trainer_pb2.Adapter:
        """The adapter that a run published."""
        return await self._get_adapter(trainer_pb2.GetAdapterRequest(training_run=training_run))

    async def _get_adapter(self, request: trainer_pb2.GetAdapterRequest) -> trainer_pb2.Adapter:
        response = await self.caller.repeatable(self.stub.GetAdapter, request)
        return response.adapter

    def list_adapters(self, *, page_size: int = 0) -> AsyncGenerator[trainer_pb2.Adapter, None]:
        """Newest first, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListAdapters,
                trainer_pb2.ListAdaptersRequest(page_size=page_size, page_token=page_token),
            ),
            lambda page: page.adapters,
        )


class _Answer(Protocol):
    """What Get, Wait and Cancel answer."""

    @property
    def training_run(self) -> trainer_pb2.TrainingRun: ...


def _calls(
    stub: trainer_pb2_grpc.TrainerServiceStub,
    watch_stub: trainer_pb2_grpc.TrainerServiceStub,
    caller: Caller,
    watch_policy: RetryPolicy,
) -> JobCalls[trainer_pb2.TrainingRun, trainer_pb2.TrainingRunEvent, _Answer]:
    return JobCalls(
        caller=caller,
        watch_policy=watch_policy,
        resource_of=lambda answer: answer.training_run,
        ask_get=lambda name: caller.repeatable(
            stub.GetTrainingRun, trainer_pb2.GetTrainingRunRequest(name=name)
        ),
        ask_wait=lambda name, seconds: caller.repeatable(
            stub.WaitTrainingRun,
            trainer_pb2.WaitTrainingRunRequest(name=name, timeout=duration(seconds)),
            additional_timeout_seconds=seconds,
        ),
        ask_cancel=lambda name: caller.repeatable(
            stub.CancelTrainingRun, trainer_pb2.CancelTrainingRunRequest(name=name)
        ),
        open_watch=lambda name, at: watch_stub.WatchTrainingRun(
            trainer_pb2.WatchTrainingRunRequest(
                name=name, after_sequence=at.sequence, log_id=at.log_id, replay=at.replay
            ),
            metadata=caller.metadata,
        ),
    )
