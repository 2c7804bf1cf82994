"""Generations and the gallery of their images."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass

import grpc

from sfumato.generator.v1 import generator_pb2, generator_pb2_grpc
from sfumato_client.blobs import Blobs
from sfumato_client.calls import Caller, RetryPolicy, with_request_id
from sfumato_client.jobs import duration, pages, wait
from sfumato_client.watch import Cursor, Reconnecting, Watch, WatchItem


@dataclass(frozen=True, kw_only=True, slots=True)
class Generator:
    """Generations and the gallery of their images.

    Every method answers proto messages and raises SfumatoError.
    """

    stub: generator_pb2_grpc.GeneratorServiceStub
    watch_stub: generator_pb2_grpc.GeneratorServiceStub
    caller: Caller
    watch_policy: RetryPolicy
    # BlobService of this service.
    blobs: Blobs

    async def create_generation(
        self, request: generator_pb2.CreateGenerationRequest
    ) -> generator_pb2.CreateGenerationResponse:
        """Asks for a generation and answers the queued job. Without a request id it makes one."""
        return await self.caller.repeatable(self.stub.CreateGeneration, with_request_id(request))

    async def get_generation(self, name: str) -> generator_pb2.Generation:
        """The job as it stands."""
        response = await self.caller.repeatable(
            self.stub.GetGeneration, generator_pb2.GetGenerationRequest(name=name)
        )
        return response.generation

    def list_generations(
        self, *, page_size: int = 0
    ) -> AsyncGenerator[generator_pb2.Generation, None]:
        """Newest first, over all pages."""

        async def fetch(page_token: str) -> tuple[Iterable[generator_pb2.Generation], str]:
            response = await self.caller.repeatable(
                self.stub.ListGenerations,
                generator_pb2.ListGenerationsRequest(page_size=page_size, page_token=page_token),
            )
            return response.generations, response.next_page_token

        return pages(fetch)

    async def wait_generation(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> generator_pb2.Generation:
        """Waits until the job has ended, or for the time given; "not done" is no error."""

        async def wait_once(seconds: float) -> generator_pb2.Generation:
            response = await self.caller.repeatable(
                self.stub.WaitGeneration,
                generator_pb2.WaitGenerationRequest(name=name, timeout=duration(seconds)),
                additional_timeout_seconds=seconds,
            )
            return response.generation

        return await wait(wait_once, timeout_seconds=timeout_seconds, timing=self.caller.timing)

    def watch_generation(
        self,
        name: str,
        *,
        cursor: Cursor | None = None,
        on_reconnecting: Callable[[Reconnecting], None] | None = None,
    ) -> AsyncGenerator[WatchItem[generator_pb2.Generation, generator_pb2.GenerationEvent], None]:
        """Follows the job: each event once, in order, across lost connections (`Watch.items`)."""

        def open_stream(
            at: Cursor,
        ) -> grpc.aio.UnaryStreamCall[
            generator_pb2.WatchGenerationRequest, generator_pb2.WatchGenerationResponse
        ]:
            return self.watch_stub.WatchGeneration(
                generator_pb2.WatchGenerationRequest(
                    name=name, after_sequence=at.sequence, log_id=at.log_id, replay=at.replay
                ),
                metadata=self.caller.metadata,
            )

        watch: Watch[generator_pb2.Generation, generator_pb2.GenerationEvent] = Watch(
            open_stream=open_stream,
            cursor=cursor or Cursor(),
            policy=self.watch_policy,
            timing=self.caller.timing,
            on_reconnecting=on_reconnecting,
        )
        return watch.items()

    async def cancel_generation(self, name: str) -> generator_pb2.Generation:
        """Ends a generation within one denoising step; images saved already stay."""
        response = await self.caller.repeatable(
            self.stub.CancelGeneration, generator_pb2.CancelGenerationRequest(name=name)
        )
        return response.generation

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

        async def fetch(page_token: str) -> tuple[Iterable[generator_pb2.Image], str]:
            response = await self.caller.repeatable(
                self.stub.ListImages,
                generator_pb2.ListImagesRequest(
                    page_size=page_size, page_token=page_token, generation=generation
                ),
            )
            return response.images, response.next_page_token

        return pages(fetch)
