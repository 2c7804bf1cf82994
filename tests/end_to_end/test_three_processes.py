"""The main job with each service in a process of its own and a recording proxy between them."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from deployment import ServeProcess, follow_run, import_emoji, training_request
from recording_proxy import RecordingProxy
from sfumato.generator.v1 import generator_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client import Addresses, Client, Connection


@pytest.mark.slow
async def test_cross_service_calls_go_over_the_wire(tmp_path: Path, tiny_models: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(tiny_models, data / "models", copy_function=shutil.copy2)
    async with AsyncExitStack() as stack:

        def start(name: str, **environment: str) -> str:
            process = ServeProcess(data, only=(name,), environment=environment)
            address = process.start()
            stack.callback(process.stop)
            return address

        datasets = start("datasets")
        to_datasets = await stack.enter_async_context(RecordingProxy(datasets))
        trainer = start("trainer", SFUMATO_ADDRESSES_DATASETS=to_datasets.address)
        to_trainer = await stack.enter_async_context(RecordingProxy(trainer))
        generator = start("generator", SFUMATO_ADDRESSES_TRAINER=to_trainer.address)
        addresses = Addresses(datasets=datasets, trainer=trainer, generator=generator)
        client = await stack.enter_async_context(Client(Connection(addresses=addresses)))

        await import_emoji(client)
        created = await client.trainer.create_training_run(
            training_request(model="tiny-z-image", steps=10)
        )
        _, run = await follow_run(client, created.training_run.name)
        assert run.status.state == job_pb2.JOB_STATE_SUCCEEDED
        asked = generator_pb2.CreateGenerationRequest()
        asked.configuration.model.directory.path = "tiny-z-image"
        asked.configuration.prompt = "a red apple"
        asked.configuration.width = asked.configuration.height = 64
        asked.configuration.steps = 2
        asked.configuration.text_to_image.SetInParent()
        asked.configuration.adapters.add().adapter.training_run = run.name
        generation = (await client.generator.create_generation(asked)).generation
        made = await client.generator.wait_generation(generation.name)
        assert made.status.state == job_pb2.JOB_STATE_SUCCEEDED, made.status
        assert made.images[0].adapter_files[0].digest == run.adapter.file.digest

    prefix = "sfumato.datasets.v1.DatasetsService."
    assert set(to_datasets.methods) == {
        f"{prefix}{method}"
        for method in ("GetDatasetVersion", "PinVersion", "StreamSamples", "UnpinVersion")
    }
    assert set(to_trainer.methods) == {"sfumato.trainer.v1.TrainerService.GetAdapter"}
