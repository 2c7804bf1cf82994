"""Generations and the gallery of their images."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from sfumato.blobs.v1 import blobs_pb2_grpc
from sfumato.generator.v1 import generator_pb2, generator_pb2_grpc
from sfumato_client.blobs import Blobs
from sfumato_client.calls import Caller, RetryPolicy, with_request_id
from sfumato_client.channel import ChannelPair
from sfumato_client.jobs import JobCalls, duration, pages
from sfumato_client.watch import Cursor, Reconnecting, WatchItem


class Generator:
    """Generations and the gallery of their images.

    Every method answers proto messages and raises SfumatoError.

    Attributes:
        stub: the service's methods, to be called as they are.
        caller: makes the calls.
        blobs: BlobService of this service.
    """

    def __init__(self, channels: ChannelPair, caller: Caller, watch_policy: RetryPolicy) -> None:
        """Makes no call."""
        self.stub = generator_pb2_grpc.GeneratorServiceStub(channels.unary)
        self.caller = caller
        self.blobs = Blobs(stub=blobs_pb2_grpc.BlobServiceStub(channels.unary), caller=caller)
        self._generations = _calls(
            self.stub, generator_pb2_grpc.GeneratorServiceStub(channels.watch), caller, watch_policy
        )

    async def create_generation(
        self, request: generator_pb2.CreateGenerationRequest
    ) -> generator_pb2.CreateGenerationResponse:
        """Asks for a generation and answers the queued job. Without a request id it makes one."""
        return await self.caller.repeatable(self.stub.CreateGeneration, with_request_id(request))

    async def get_generation(self, name: str) -> generator_pb2.Generation:
        """The job as it stands."""
        return await self._generations.get(name)

    def list_generations(
        self, *, page_size: int = 0
    ) -> AsyncGenerator[generator_pb2.Generation, None]:
        """Newest first, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListGenerations,
                generator_pb2.ListGenerationsRequest(page_size=page_size, page_token=page_token),
            ),
            lambda page: page.generations,
        )

    async def wait_generation(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> generator_pb2.Generation:
        """Waits until the job has ended, or for the time given; "not done" is no error."""
        return await self._generations.wait(name, timeout_seconds)

    def watch_generation(
        self,
        name: str,
        *,
        cursor: Cursor | None = None,
        on_reconnecting: Callable[[Reconnecting], None] | None = None,
    ) -> AsyncGenerator[WatchItem[generator_pb2.Generation, generator_pb2.GenerationEvent], None]:
        """Follows the job: each event once, in order, across lost connections (`Watch.items`)."""
        return self._generations.watch(name, cursor, on_reconnecting)

    async def cancel_generation(self, name: str) -> generator_pb2.Generation:
        """Ends a generation within one denoising step; images saved already stay."""
        return await self._generations.cancel(name)

    async def delete_generation(self, name: str) -> None:
        """Removes a job that has ended, with its log. After a loss it is not repeated."""
        await self.caller.once(
            self.stub.DeleteGeneration, generator_pb2.DeleteGenerationRequest(name=name)
        )

    async def get_image(self, name: str) -> generator_pb2.Image:
        """An image's record; its bytes are read by digest through `blobs`."""
        response = await self.caller.repeatable(
            self.stub.GetImage, generator_pb2.GetImageRequest(name=name)
        )
        return response.image

    def list_images(
        self, *, generation: str | None = None, page_size: int = 0
    ) -> AsyncGenerator[generator_pb2.Image, None]:
        """The gallery, or one generation's part of it, newest first, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListImages,
                generator_pb2.ListImagesRequest(
                    page_size=page_size, page_token=page_token, generation=generation
                ),
            ),
            lambda page: page.images,
        )


class _Answer(Protocol):
    """What Get, Wait and Cancel answer."""

    @property
    def generation(self) -> generator_pb2.Generation: ...


def _calls(
    stub: generator_pb2_grpc.GeneratorServiceStub,
    watch_stub: generator_pb2_grpc.GeneratorServiceStub,
    caller: Caller,
    watch_policy: RetryPolicy,
) -> JobCalls[generator_pb2.Generation, generator_pb2.GenerationEvent, _Answer]:
    return JobCalls(
        caller=caller,
        watch_policy=watch_policy,
        resource_of=lambda answer: answer.generation,
        ask_get=lambda name: caller.repeatable(
            stub.GetGeneration, generator_pb2.GetGenerationRequest(name=name)
        ),
        ask_wait=lambda name, seconds: caller.repeatable(
            stub.WaitGeneration,
            generator_pb2.WaitGenerationRequest(name=name, timeout=duration(seconds)),
            additional_timeout_seconds=seconds,
        ),
        ask_cancel=lambda name: caller.repeatable(
            stub.CancelGeneration, generator_pb2.CancelGenerationRequest(name=name)
        ),
        open_watch=lambda name, at: watch_stub.WatchGeneration(
            generator_pb2.WatchGenerationRequest(
                name=name, after_sequence=at.sequence, log_id=at.log_id, replay=at.replay
            ),
            metadata=caller.metadata,
        ),
    )
