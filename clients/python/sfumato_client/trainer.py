"""Training runs and the adapters that they publish."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

import grpc

from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from sfumato_client.blobs import Blobs
from sfumato_client.calls import Caller, RetryPolicy, with_request_id
from sfumato_client.jobs import duration, pages, wait
from sfumato_client.watch import Cursor, Reconnecting, Watch, WatchItem


@dataclass(frozen=True, kw_only=True, slots=True)
class Trainer:
    """Training runs and the adapters that they publish.

    Every method answers proto messages and raises SfumatoError.
    """

    stub: trainer_pb2_grpc.TrainerServiceStub
    watch_stub: trainer_pb2_grpc.TrainerServiceStub
    caller: Caller
    watch_policy: RetryPolicy
    # BlobService of this service.
    blobs: Blobs

    async def create_training_run(
        self, request: trainer_pb2.CreateTrainingRunRequest
    ) -> trainer_pb2.CreateTrainingRunResponse:
        """Asks for a training run and answers the queued job. Without a request id it makes one."""
        return await self.caller.repeatable(self.stub.CreateTrainingRun, with_request_id(request))

    async def get_training_run(self, name: str) -> trainer_pb2.TrainingRun:
        """The job as it stands."""
        response = await self.caller.repeatable(
            self.stub.GetTrainingRun, trainer_pb2.GetTrainingRunRequest(name=name)
        )
        return response.training_run

    def list_training_runs(
        self, *, page_size: int = 0
    ) -> AsyncGenerator[trainer_pb2.TrainingRun, None]:
        """Newest first, over all pages."""

        async def fetch(page_token: str) -> tuple[Iterable[trainer_pb2.TrainingRun], str]:
            response = await self.caller.repeatable(
                self.stub.ListTrainingRuns,
                trainer_pb2.ListTrainingRunsRequest(page_size=page_size, page_token=page_token),
            )
            return response.training_runs, response.next_page_token

        return pages(fetch)

    async def wait_training_run(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> trainer_pb2.TrainingRun:
        """Waits until the job has ended, or for the time given; "not done" is no error."""

        async def wait_once(seconds: float) -> trainer_pb2.TrainingRun:
            response = await self.caller.repeatable(
                self.stub.WaitTrainingRun,
                trainer_pb2.WaitTrainingRunRequest(name=name, timeout=duration(seconds)),
                additional_timeout_seconds=seconds,
            )
            return response.training_run

        return await wait(wait_once, timeout_seconds=timeout_seconds, timing=self.caller.timing)

    def watch_training_run(
        self,
        name: str,
        *,
        cursor: Cursor | None = None,
        on_reconnecting: Callable[[Reconnecting], None] | None = None,
    ) -> AsyncGenerator[WatchItem[trainer_pb2.TrainingRun, trainer_pb2.TrainingRunEvent], None]:
        """Follows the job: each event once, in order, across lost connections (`Watch.items`)."""

        def open_stream(
            at: Cursor,
        ) -> grpc.aio.UnaryStreamCall[
            trainer_pb2.WatchTrainingRunRequest, trainer_pb2.WatchTrainingRunResponse
        ]:
            return self.watch_stub.WatchTrainingRun(
                trainer_pb2.WatchTrainingRunRequest(
                    name=name, after_sequence=at.sequence, log_id=at.log_id, replay=at.replay
                ),
                metadata=self.caller.metadata,
            )

        watch: Watch[trainer_pb2.TrainingRun, trainer_pb2.TrainingRunEvent] = Watch(
            open_stream=open_stream,
            cursor=cursor or Cursor(),
            policy=self.watch_policy,
            timing=self.caller.timing,
            on_reconnecting=on_reconnecting,
        )
        return watch.items()

    async def cancel_training_run(self, name: str) -> trainer_pb2.TrainingRun:
        """Ends a run: its checkpoints stay, nothing is published."""
        response = await self.caller.repeatable(
            self.stub.CancelTrainingRun, trainer_pb2.CancelTrainingRunRequest(name=name)
        )
        return response.training_run

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

        async def fetch(page_token: str) -> tuple[Iterable[trainer_pb2.Adapter], str]:
            response = await self.caller.repeatable(
                self.stub.ListAdapters,
                trainer_pb2.ListAdaptersRequest(page_size=page_size, page_token=page_token),
            )
            return response.adapters, response.next_page_token

        return pages(fetch)
