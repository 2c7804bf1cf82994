"""Runs the small servers of the client's tests."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from blob_server import BlobServer
from import_server import ImportServer
from model_servers import GenerationServer, RunServer
from sfumato.blobs.v1 import blobs_pb2_grpc
from sfumato.datasets.v1 import datasets_pb2_grpc
from sfumato.generator.v1 import generator_pb2_grpc
from sfumato.trainer.v1 import trainer_pb2_grpc
from sfumato_client import Addresses, Client, Connection, RetryPolicy, Timing


@asynccontextmanager
async def serving(
    *,
    imports: ImportServer | None = None,
    blobs: BlobServer | None = None,
    runs: RunServer | None = None,
    generations: GenerationServer | None = None,
) -> AsyncIterator[int]:
    """Serves on a free loopback port, which it yields."""
    server = grpc.aio.server()
    if imports is not None:
        datasets_pb2_grpc.add_DatasetsServiceServicer_to_server(imports, server)
    if blobs is not None:
        blobs_pb2_grpc.add_BlobServiceServicer_to_server(blobs, server)
    if runs is not None:
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(runs, server)
    if generations is not None:
        generator_pb2_grpc.add_GeneratorServiceServicer_to_server(generations, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def quick_client(address: str, *, seed: int = 0, budget_seconds: float = 5.0) -> Client:
    """A client with short delays drawn from a seed."""
    policy = RetryPolicy(
        first_delay_seconds=0.002,
        maximum_delay_seconds=0.01,
        budget_seconds=budget_seconds,
        attempt_timeout_seconds=5.0,
    )
    return Client(
        Connection(addresses=Addresses.all_at(address)),
        policy=policy,
        watch_policy=policy,
        timing=Timing(random=random.Random(seed)),
    )
