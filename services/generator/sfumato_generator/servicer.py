"""``sfumato.generator.v1.GeneratorService``: converts, delegates, converts."""

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from google.protobuf.message import Message

from sfumato.generator.v1 import generator_pb2, generator_pb2_grpc
from sfumato_chassis.job_messages import (
    cursor_of,
    interruption_policy,
    wait_seconds,
    watch_responses,
)
from sfumato_chassis.jobs import Event, InterruptionPolicy, Job, JobState
from sfumato_chassis.paging import page_size
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_chassis.watching import wait_until_ended, watch
from sfumato_generator import messages, storage
from sfumato_generator.engine import GenerationEngine

MAX_PAGE_BYTES = 3 << 20
"""A message holds at most 4 MiB, and prompts are long: a page ends early rather than break that."""


class GeneratorServicer(generator_pb2_grpc.GeneratorServiceServicer):
    """Generations and the gallery."""

    def __init__(self, platform: Platform, engine: GenerationEngine) -> None:
        self._platform = platform
        self._engine = engine

    async def CreateGeneration(
        self, request: generator_pb2.CreateGenerationRequest, context: Any
    ) -> generator_pb2.CreateGenerationResponse:
        owner = current_principal().name
        wanted = messages.wanted_generation(request.configuration)
        refuse_busy = request.device_busy == generator_pb2.DEVICE_BUSY_POLICY_REFUSE
        if request.validate_only:
            plan = await self._engine.validate(wanted, owner, refuse_busy=refuse_busy)
            return generator_pb2.CreateGenerationResponse(
                generation=messages.validated_message(plan, owner)
            )
        policy = interruption_policy(request.interruption_policy, InterruptionPolicy.MANUAL)
        job, deduplicated = await self._engine.create(
            request_of(request, owner), wanted, policy, refuse_busy=refuse_busy
        )
        return generator_pb2.CreateGenerationResponse(
            generation=await self._generation(job), deduplicated=deduplicated
        )

    async def GetGeneration(
        self, request: generator_pb2.GetGenerationRequest, context: Any
    ) -> generator_pb2.GetGenerationResponse:
        job = await self._engine.jobs.get(request.name, current_principal().name)
        return generator_pb2.GetGenerationResponse(generation=await self._generation(job))

    async def ListGenerations(
        self, request: generator_pb2.ListGenerationsRequest, context: Any
    ) -> generator_pb2.ListGenerationsResponse:
        select = partial(
            self._engine.jobs.select_page,
            owner=current_principal().name,
            token=request.page_token,
        )
        size = page_size(request.page_size)
        page = await self._platform.database.read(partial(select, size=size))
        generations = [await self._generation(job) for job in page.rows]
        fitting = number_that_fits(generations)
        if fitting < len(generations):
            page = await self._platform.database.read(partial(select, size=fitting))
        return generator_pb2.ListGenerationsResponse(
            generations=generations[:fitting], next_page_token=page.next_page_token
        )

    async def WaitGeneration(
        self, request: generator_pb2.WaitGenerationRequest, context: Any
    ) -> generator_pb2.WaitGenerationResponse:
        job = await wait_until_ended(
            self._engine.jobs,
            request.name,
            current_principal().name,
            timeout_seconds=wait_seconds(request),
            draining=self._platform.draining,
        )
        return generator_pb2.WaitGenerationResponse(generation=await self._generation(job))

    async def WatchGeneration(
        self, request: generator_pb2.WatchGenerationRequest, context: Any
    ) -> AsyncIterator[generator_pb2.WatchGenerationResponse]:
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
            generator_pb2.WatchGenerationResponse,
            resource=self._generation,
            event=self._event,
            heartbeat_seconds=limits.heartbeat_seconds,
        ):
            yield response

    async def CancelGeneration(
        self, request: generator_pb2.CancelGenerationRequest, context: Any
    ) -> generator_pb2.CancelGenerationResponse:
        job = await self._engine.cancel(request.name, current_principal().name)
        return generator_pb2.CancelGenerationResponse(generation=await self._generation(job))

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
        select = partial(
            storage.select_images,
            owner=current_principal().name,
            generation=request.generation if request.HasField("generation") else None,
            token=request.page_token,
        )
        size = page_size(request.page_size)
        page = await self._platform.database.read(partial(select, size=size))
        images = [messages.image_message(image) for image in page.rows]
        fitting = number_that_fits(images)
        if fitting < len(images):
            page = await self._platform.database.read(partial(select, size=fitting))
        return generator_pb2.ListImagesResponse(
            images=images[:fitting], next_page_token=page.next_page_token
        )

    async def _generation(self, job: Job) -> generator_pb2.Generation:
        if job.state is JobState.EXPIRED:
            return messages.expired_message(job)
        record, images = await self._platform.database.read(
            lambda connection: (
                storage.get_generation(connection, job.name),
                storage.images_of_generation(
                    connection, job.name, job.owner, up_to_sequence=job.last_sequence
                ),
            )
        )
        return messages.generation_message(job, record, images)

    async def _event(self, event: Event) -> generator_pb2.GenerationEvent:
        return messages.event_message(event)


def number_that_fits(items: Sequence[Message]) -> int:
    """How many of the first ``items`` one response can hold; one in any case."""
    size_bytes = 0
    for index, item in enumerate(items):
        size_bytes += item.ByteSize()
        if size_bytes > MAX_PAGE_BYTES:
            return max(index, 1)
    return len(items)
