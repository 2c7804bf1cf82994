"""``sfumato.trainer.v1.TrainerService``: converts, delegates, converts."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from sqlalchemy import Connection

from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from sfumato_chassis.job_messages import interruption_policy
from sfumato_chassis.job_surface import JobSurface
from sfumato_chassis.jobs import InterruptionPolicy, Job
from sfumato_chassis.paging import page_size
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_trainer import messages, storage
from sfumato_trainer.engine import TrainingEngine
from sfumato_trainer.run_request import RunRequest


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Training runs and their adapters."""

    def __init__(self, platform: Platform, engine: TrainingEngine) -> None:
        self._platform = platform
        self._engine = engine
        self._runs = JobSurface(
            platform,
            engine.jobs,
            trainer_pb2.TrainingRun,
            resource=select_run,
            event=messages.event_message,
            succeeded=messages.succeeded_message,
        )

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
            training_run=await self._runs.of(job), deduplicated=deduplicated
        )

    async def GetTrainingRun(
        self, request: trainer_pb2.GetTrainingRunRequest, context: Any
    ) -> trainer_pb2.GetTrainingRunResponse:
        return trainer_pb2.GetTrainingRunResponse(training_run=await self._runs.get(request.name))

    async def ListTrainingRuns(
        self, request: trainer_pb2.ListTrainingRunsRequest, context: Any
    ) -> trainer_pb2.ListTrainingRunsResponse:
        runs, token = await self._runs.list(request)
        return trainer_pb2.ListTrainingRunsResponse(training_runs=runs, next_page_token=token)

    async def WaitTrainingRun(
        self, request: trainer_pb2.WaitTrainingRunRequest, context: Any
    ) -> trainer_pb2.WaitTrainingRunResponse:
        return trainer_pb2.WaitTrainingRunResponse(training_run=await self._runs.wait(request))

    def WatchTrainingRun(
        self, request: trainer_pb2.WatchTrainingRunRequest, context: Any
    ) -> AsyncIterator[trainer_pb2.WatchTrainingRunResponse]:
        return self._runs.watch(request, trainer_pb2.WatchTrainingRunResponse)

    async def CancelTrainingRun(
        self, request: trainer_pb2.CancelTrainingRunRequest, context: Any
    ) -> trainer_pb2.CancelTrainingRunResponse:
        job = await self._engine.cancel(request.name, current_principal().name)
        return trainer_pb2.CancelTrainingRunResponse(training_run=await self._runs.of(job))

    async def StopTrainingRun(
        self, request: trainer_pb2.StopTrainingRunRequest, context: Any
    ) -> trainer_pb2.StopTrainingRunResponse:
        job = await self._engine.stop_run(request.name, current_principal().name)
        return trainer_pb2.StopTrainingRunResponse(training_run=await self._runs.of(job))

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


def select_run(connection: Connection, job: Job) -> trainer_pb2.TrainingRun:
    """The whole run of a job."""
    run = storage.get_run(connection, job.name)
    return messages.run_message(job, run, storage.adapters_of(connection, job.name))


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
