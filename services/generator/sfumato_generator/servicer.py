"""``sfumato.generator.v1.GeneratorService``: converts, delegates, converts."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from sqlalchemy import Connection

from sfumato.generator.v1 import generator_pb2, generator_pb2_grpc
from sfumato_chassis.job_messages import interruption_policy
from sfumato_chassis.job_surface import JobSurface
from sfumato_chassis.jobs import InterruptionPolicy, Job
from sfumato_chassis.paging import page_size, rows_that_fit
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_generator import messages, storage
from sfumato_generator.engine import GenerationEngine


class GeneratorServicer(generator_pb2_grpc.GeneratorServiceServicer):
    """Generations and the gallery."""

    def __init__(self, platform: Platform, engine: GenerationEngine) -> None:
        self._platform = platform
        self._engine = engine
        self._generations = JobSurface(
            platform,
            engine.jobs,
            generator_pb2.Generation,
            resource=select_generation,
            event=messages.event_message,
        )

    async def CreateGeneration(
        self, request: generator_pb2.CreateGenerationRequest, context: Any
    ) -> generator_pb2.CreateGenerationResponse:
        owner = current_principal().name
        asked = messages.generation_request(request.configuration)
        refuse_busy = request.device_busy == generator_pb2.DEVICE_BUSY_POLICY_REFUSE
        if request.validate_only:
            plan = await self._engine.validate(asked, owner, refuse_busy=refuse_busy)
            return generator_pb2.CreateGenerationResponse(
                generation=messages.validated_message(plan, owner)
            )
        policy = interruption_policy(request.interruption_policy, InterruptionPolicy.MANUAL)
        job, deduplicated = await self._engine.create(
            request_of(request, owner), asked, policy, refuse_busy=refuse_busy
        )
        return generator_pb2.CreateGenerationResponse(
            generation=await self._generations.of(job), deduplicated=deduplicated
        )

    async def GetGeneration(
        self, request: generator_pb2.GetGenerationRequest, context: Any
    ) -> generator_pb2.GetGenerationResponse:
        return generator_pb2.GetGenerationResponse(
            generation=await self._generations.get(request.name)
        )

    async def ListGenerations(
        self, request: generator_pb2.ListGenerationsRequest, context: Any
    ) -> generator_pb2.ListGenerationsResponse:
        generations, token = await self._generations.list(request)
        return generator_pb2.ListGenerationsResponse(generations=generations, next_page_token=token)

    async def WaitGeneration(
        self, request: generator_pb2.WaitGenerationRequest, context: Any
    ) -> generator_pb2.WaitGenerationResponse:
        return generator_pb2.WaitGenerationResponse(
            generation=await self._generations.wait(request)
        )

    def WatchGeneration(
        self, request: generator_pb2.WatchGenerationRequest, context: Any
    ) -> AsyncIterator[generator_pb2.WatchGenerationResponse]:
        return self._generations.watch(request, generator_pb2.WatchGenerationResponse)

    async def CancelGeneration(
        self, request: generator_pb2.CancelGenerationRequest, context: Any
    ) -> generator_pb2.CancelGenerationResponse:
        job = await self._engine.cancel(request.name, current_principal().name)
        return generator_pb2.CancelGenerationResponse(generation=await self._generations.of(job))

    async def DeleteGeneration(
        self, request: generator_pb2.DeleteGenerationRequest, context: Any
    ) -> generator_pb2.DeleteGenerationResponse:
        await self._engine.delete(request.name, current_principal().name)
        return generator_pb2.DeleteGenerationResponse()

    async def GetImage(
        self, request: generator_pb2.GetImageRequest, context: Any
    ) -> generator_pb2.GetImageResponse:
        owner = current_principal().name
        image = await self._platform.database.read(
            lambda connection: storage.get_image(connection, owner, request.name)
        )
        return generator_pb2.GetImageResponse(image=messages.image_message(image))

    async def ListImages(
        self, request: generator_pb2.ListImagesRequest, context: Any
    ) -> generator_pb2.ListImagesResponse:
        size = page_size(request.page_size)
        select = partial(
            storage.select_images,
            owner=current_principal().name,
            generation=request.generation if request.HasField("generation") else None,
            token=request.page_token,
        )

        def work(connection: Connection) -> generator_pb2.ListImagesResponse:
            page = select(connection, size=size)
            images = [messages.image_message(image) for image in page.rows]
            fitting = rows_that_fit(images, lambda image: image.ByteSize())
            if len(fitting) < len(images):
                page = select(connection, size=len(fitting))
            return generator_pb2.ListImagesResponse(
                images=fitting, next_page_token=page.next_page_token
            )

        return await self._platform.database.read(work)


def select_generation(connection: Connection, job: Job) -> generator_pb2.Generation:
    """The whole generation of a job, with the images up to the job's last event."""
    record = storage.get_generation(connection, job.name)
    images = storage.images_of_generation(
        connection, job.name, job.owner, up_to_sequence=job.last_sequence
    )
    return messages.generation_message(job, record, images)
