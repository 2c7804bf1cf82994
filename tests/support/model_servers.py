"""Small trainer and generator services for the tests of the command line. Each plays one finished job."""

# ruff: noqa: N802  # methods are named by gRPC
from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
from google.protobuf.message import Message

from sfumato.blobs.v1 import blobs_pb2
from sfumato.generator.v1 import generator_pb2, generator_pb2_grpc
from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from statuses import status

Context = grpc.aio.ServicerContext[Message, Message]
RUN, ADAPTER, IMAGE = "run-1", "adapter-1", "image-1"


def job(state: job_pb2.JobState.ValueType, last_sequence: int) -> job_pb2.JobStatus:
    """The status of a job whose log holds that many events."""
    return job_pb2.JobStatus(
        state=state, log_id="log", first_sequence=1, last_sequence=last_sequence
    )


class RunServer(trainer_pb2_grpc.TrainerServiceServicer):
    """Plays one run whose events are `events`, ending in `run`."""

    def __init__(self) -> None:
        self.created: list[trainer_pb2.CreateTrainingRunRequest] = []
        self.ended: list[str] = []
        self.events = [
            trainer_pb2.TrainingRunEvent(started=job_pb2.Started(attempt=1, device="cpu")),
            trainer_pb2.TrainingRunEvent(
                progress=trainer_pb2.TrainingProgress(
                    step=1, total_steps=2, loss=0.5, learning_rate=1e-4
                )
            ),
            trainer_pb2.TrainingRunEvent(
                checkpoint_saved=trainer_pb2.Checkpoint(step=2, size_bytes=2048)
            ),
            trainer_pb2.TrainingRunEvent(succeeded=trainer_pb2.RunSucceeded(steps=2)),
        ]
        self.run = trainer_pb2.TrainingRun(
            name=RUN,
            status=job(job_pb2.JOB_STATE_SUCCEEDED, len(self.events)),
            adapter=trainer_pb2.Adapter(name=ADAPTER, training_run=RUN, steps=2),
            progress=trainer_pb2.TrainingProgress(step=2, total_steps=2, average_loss=0.25),
        )

    async def CreateTrainingRun(
        self, request: trainer_pb2.CreateTrainingRunRequest, context: Context
    ) -> trainer_pb2.CreateTrainingRunResponse:
        self.created.append(request)
        run = trainer_pb2.TrainingRun(resolved_configuration=request.configuration)
        run.MergeFrom(self.run)
        return trainer_pb2.CreateTrainingRunResponse(training_run=run)

    async def WatchTrainingRun(
        self, request: trainer_pb2.WatchTrainingRunRequest, context: Context
    ) -> AsyncIterator[trainer_pb2.WatchTrainingRunResponse]:
        yield trainer_pb2.WatchTrainingRunResponse(
            attached=job_pb2.Attached(status=self.run.status)
        )
        for number, event in enumerate(self.events, start=1):
            event.header.sequence = number
            yield trainer_pb2.WatchTrainingRunResponse(event=event)
        yield trainer_pb2.WatchTrainingRunResponse(finished=self.run)

    async def StopTrainingRun(
        self, request: trainer_pb2.StopTrainingRunRequest, context: Context
    ) -> trainer_pb2.StopTrainingRunResponse:
        self.ended.append(f"stop {request.name}")
        return trainer_pb2.StopTrainingRunResponse(training_run=self.run)

    async def CancelTrainingRun(
        self, request: trainer_pb2.CancelTrainingRunRequest, context: Context
    ) -> trainer_pb2.CancelTrainingRunResponse:
        self.ended.append(f"cancel {request.name}")
        await context.abort_with_status(
            status(grpc.StatusCode.FAILED_PRECONDITION, reason="JOB_STATE_UNSUITABLE")
        )

    async def GetTrainingRun(
        self, request: trainer_pb2.GetTrainingRunRequest, context: Context
    ) -> trainer_pb2.GetTrainingRunResponse:
        return trainer_pb2.GetTrainingRunResponse(training_run=self.run)

    async def ListTrainingRuns(
        self, request: trainer_pb2.ListTrainingRunsRequest, context: Context
    ) -> trainer_pb2.ListTrainingRunsResponse:
        return trainer_pb2.ListTrainingRunsResponse(training_runs=[self.run])

    async def GetAdapter(
        self, request: trainer_pb2.GetAdapterRequest, context: Context
    ) -> trainer_pb2.GetAdapterResponse:
        if request.training_run != RUN and request.name != ADAPTER:
            await context.abort_with_status(
                status(grpc.StatusCode.NOT_FOUND, reason="RESOURCE_NOT_FOUND")
            )
        return trainer_pb2.GetAdapterResponse(adapter=self.run.adapter)


class GenerationServer(generator_pb2_grpc.GeneratorServiceServicer):
    """Plays one generation of one image, whose file has `digest`."""

    def __init__(self, digest: str) -> None:
        self.created: list[generator_pb2.CreateGenerationRequest] = []
        self.image = generator_pb2.Image(
            name=IMAGE,
            seed=7,
            file=blobs_pb2.BlobRef(digest=digest, media_type="image/png"),
        )
        self.events = [
            generator_pb2.GenerationEvent(
                step=generator_pb2.GenerationProgress(image=1, num_images=1, step=1, num_steps=4)
            ),
            generator_pb2.GenerationEvent(image_saved=self.image),
            generator_pb2.GenerationEvent(
                succeeded=generator_pb2.GenerationSucceeded(num_images=1)
            ),
        ]
        self.generation = generator_pb2.Generation(
            name="generation-1",
            status=job(job_pb2.JOB_STATE_SUCCEEDED, len(self.events)),
            images=[self.image],
        )

    async def CreateGeneration(
        self, request: generator_pb2.CreateGenerationRequest, context: Context
    ) -> generator_pb2.CreateGenerationResponse:
        self.created.append(request)
        return generator_pb2.CreateGenerationResponse(generation=self.generation)

    async def WatchGeneration(
        self, request: generator_pb2.WatchGenerationRequest, context: Context
    ) -> AsyncIterator[generator_pb2.WatchGenerationResponse]:
        yield generator_pb2.WatchGenerationResponse(
            attached=job_pb2.Attached(status=self.generation.status)
        )
        for number, event in enumerate(self.events, start=1):
            event.header.sequence = number
            yield generator_pb2.WatchGenerationResponse(event=event)
        yield generator_pb2.WatchGenerationResponse(finished=self.generation)

    async def GetImage(
        self, request: generator_pb2.GetImageRequest, context: Context
    ) -> generator_pb2.GetImageResponse:
        return generator_pb2.GetImageResponse(image=self.image)

    async def ListImages(
        self, request: generator_pb2.ListImagesRequest, context: Context
    ) -> generator_pb2.ListImagesResponse:
        return generator_pb2.ListImagesResponse(images=[self.image])
