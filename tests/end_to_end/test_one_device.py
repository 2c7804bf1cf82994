"""Training and generation share one device: a resident model leaves, and what waits is told so."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployment import ServeProcess, client_of, follow_run, import_emoji, kinds, training_request
from sfumato.generator.v1 import generator_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client import Client
from sfumato_client.errors import FailedPrecondition


def picture(**more: object) -> generator_pb2.CreateGenerationRequest:
    request = generator_pb2.CreateGenerationRequest(**more)
    configuration = request.configuration
    configuration.model.directory.path = "tiny-z-image"
    configuration.prompt = "a red apple"
    configuration.width = configuration.height = 64
    configuration.steps = 2
    configuration.seed = 5
    configuration.text_to_image.SetInParent()
    return request


async def paint(client: Client) -> generator_pb2.Generation:
    created = await client.generator.create_generation(picture())
    made = await client.generator.wait_generation(created.generation.name)
    assert made.status.state == job_pb2.JOB_STATE_SUCCEEDED, made.status
    return made


@pytest.mark.slow
async def test_a_resident_model_leaves_for_a_run_and_comes_back(data_dir: Path) -> None:
    server = ServeProcess(data_dir)
    server.start()
    try:
        async with client_of(server.address) as client:
            await import_emoji(client)
            first = await paint(client)
            assert server.workers("generator"), "the model stays resident"

            created = await client.trainer.create_training_run(
                training_request(model="tiny-z-image", steps=400)
            )
            busy: list[FailedPrecondition] = []

            async def ask_while_training(event) -> None:
                if event.WhichOneof("event") == "loaded" and not busy:
                    assert not server.workers("generator"), "the resident model has left"
                    with pytest.raises(FailedPrecondition) as refused:
                        await client.generator.create_generation(
                            picture(device_busy=generator_pb2.DEVICE_BUSY_POLICY_REFUSE)
                        )
                    busy.append(refused.value)

            events, run = await follow_run(client, created.training_run.name, ask_while_training)
            assert run.status.state == job_pb2.JOB_STATE_SUCCEEDED
            assert kinds(events)["started"] == 1
            assert busy[0].reason == "DEVICE_BUSY"
            assert run.name in busy[0].message

            again = await paint(client)
            assert again.images[0].file.digest == first.images[0].file.digest
    finally:
        assert server.stop() == 0
