"""``sfumato.trainer.v1.TrainerService``: converts, delegates, converts."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from sfumato_chassis.job_messages import (
    cursor_of,
    interruption_policy,
    job_status,
    wait_seconds,
    watch_responses,
)
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job, JobState
from sfumato_chassis.paging import page_size
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_chassis.watching import wait_until_ended, watch
from sfumato_trainer import messages, storage
from sfumato_trainer.engine import TrainingEngine
from sfumato_trainer.resolver import RunRequest


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Training runs and their adapters."""

    def __init__(self, platform: Platform, engine: TrainingEngine) -> None:
        self._platform = platform
        self._engine = engine

    async def CreateTrainingRun(
        self, request: trainer_pb2.CreateTrainingRunRequest, context: Any
    ) -> trainer_pb2.CreateTrainingRunResponse:
        owner = current_principal().name
        asked = run_request(request, owner)
        if request.validate_only:
            run = await self._engine.resolver.resolve(asked)
            return trainer_pb2.CreateTrainingRunResponse(
                training_run=messages.run_message(None, run, [])
            )
        policy = interruption_policy(request.interruption_policy, InterruptionPolicy.AUTO)
        job, deduplicated = await self._engine.create(request_of(request, owner), asked, policy)
        return trainer_pb2.CreateTrainingRunResponse(
            training_run=await self._run(job), deduplicated=deduplicated
        )

    async def GetTrainingRun(
        self, request: trainer_pb2.GetTrainingRunRequest, context: Any
    ) -> trainer_pb2.GetTrainingRunResponse:
        job = await self._engine.jobs.get(request.name, current_principal().name)
        return trainer_pb2.GetTrainingRunResponse(training_run=await self._run(job))

    async def ListTrainingRuns(
        self, request: trainer_pb2.ListTrainingRunsRequest, context: Any
    ) -> trainer_pb2.ListTrainingRunsResponse:
        page = await self._platform.database.read(
            partial(
                self._engine.jobs.select_page,
                owner=current_principal().name,
                size=page_size(request.page_size),
                token=request.page_token,
            )
        )
        return trainer_pb2.ListTrainingRunsResponse(
            training_runs=[await self._run(job) for job in page.rows],
            next_page_token=page.next_page_token,
        )

    async def WaitTrainingRun(
        self, request: trainer_pb2.WaitTrainingRunRequest, context: Any
    ) -> trainer_pb2.WaitTrainingRunResponse:
        job = await wait_until_ended(
            self._engine.jobs,
            request.name,
            current_principal().name,
            timeout_seconds=wait_seconds(request),
            draining=self._platform.draining,
        )
        return trainer_pb2.WaitTrainingRunResponse(training_run=await self._run(job))

    async def WatchTrainingRun(
        self, request: trainer_pb2.WatchTrainingRunRequest, context: Any
    ) -> AsyncIterator[trainer_pb2.WatchTrainingRunResponse]:
        limits = self._platform.watch_limits
        following = watch(
            self._engine.jobs,
            request.name,
            current_principal().name,
            cursor_of(request),
            clock=self._platform.clock,
            limits=limits,
            draining=self._platform.draining,
        )
        async for response in watch_responses(
            following,
            trainer_pb2.WatchTrainingRunResponse,
            resource=self._run,
            event=partial(self._event, request.name),
            heartbeat_seconds=limits.heartbeat_seconds,
        ):
            yield response

    async def CancelTrainingRun(
        self, request: trainer_pb2.CancelTrainingRunRequest, context: Any
    ) -> trainer_pb2.CancelTrainingRunResponse:
        job = await self._engine.cancel(request.name, current_principal().name)
        return trainer_pb2.CancelTrainingRunResponse(training_run=await self._run(job))

    async def StopTrainingRun(
        self, request: trainer_pb2.StopTrainingRunRequest, context: Any
    ) -> trainer_pb2.StopTrainingRunResponse:
        job = await self._engine.stop_run(request.name, current_principal().name)
        return trainer_pb2.StopTrainingRunResponse(training_run=await self._run(job))

    async def DeleteTrainingRun(
        self, request: trainer_pb2.DeleteTrainingRunRequest, context: Any
    ) -> trainer_pb2.DeleteTrainingRunResponse:
        await self._engine.delete(request.name, current_principal().name)
        return trainer_pb2.DeleteTrainingRunResponse()

    async def GetAdapter(
        self, request: trainer_pb2.GetAdapterRequest, context: Any
    ) -> trainer_pb2.GetAdapterResponse:
        by_name = request.WhichOneof("by") == "name"
        adapter = await self._platform.database.read(
            partial(
                storage.find_adapter,
                owner=current_principal().name,
                name=request.name if by_name else None,
                job=None if by_name else request.training_run,
            )
        )
        return trainer_pb2.GetAdapterResponse(adapter=messages.adapter_message(adapter))

    async def ListAdapters(
        self, request: trainer_pb2.ListAdaptersRequest, context: Any
    ) -> trainer_pb2.ListAdaptersResponse:
        page = await self._platform.database.read(
            partial(
                storage.select_adapters,
                owner=current_principal().name,
                size=page_size(request.page_size),
                token=request.page_token,
            )
        )
        return trainer_pb2.ListAdaptersResponse(
            adapters=[messages.adapter_message(adapter) for adapter in page.rows],
            next_page_token=page.next_page_token,
        )

    async def _run(self, job: Job) -> trainer_pb2.TrainingRun:
        if job.state is JobState.EXPIRED:
            return trainer_pb2.TrainingRun(name=job.name, owner=job.owner, status=job_status(job))
        run, adapters = await self._platform.database.read(
            lambda connection: (
                storage.get_run(connection, job.name),
                storage.adapters_of(connection, job.name),
            )
        )
        return messages.run_message(job, run, adapters)

    async def _event(self, job: str, event: Event) -> trainer_pb2.TrainingRunEvent:
        adapters = []
        if event.kind == "succeeded":
            adapters = list(
                await self._platform.database.read(
                    lambda connection: storage.adapters_of(connection, job)
                )
            )
        return messages.event_message(event, adapters)


def run_request(request: trainer_pb2.CreateTrainingRunRequest, owner: str) -> RunRequest:
    """What a caller asks for."""
    configuration = request.configuration
    return RunRequest(
        owner=owner,
        display_name=request.display_name,
        base=messages.base_model(configuration.base_model),
        family=configuration.family if configuration.HasField("family") else None,
        dataset=configuration.dataset,
        dataset_version=(
            configuration.dataset_version if configuration.HasField("dataset_version") else None
        ),
        requested=messages.requested_settings(configuration),
    )
