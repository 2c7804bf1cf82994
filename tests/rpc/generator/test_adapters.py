"""Adapters by run and by name: asked of a trainer, read by digest, switched on a resident model."""

import shutil

import grpc
import pytest
import pytest_asyncio
import torch
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from sfumato.blobs.v1 import blobs_pb2
from sfumato.job.v1 import job_pb2, sources_pb2
from sfumato.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from sfumato_client import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from sfumato_diffusion.adapters import AdapterShape, inject_adapter, save_adapter
from sfumato_diffusion.families.registry import family_info, load_family
from sfumato_imaging.recipes import read_recipe

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEDIA_TYPE = "application/vnd.safetensors"
ADAPTER_INCOMPATIBLE, BLOB_CORRUPT = 59, 100


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    """A trainer service that knows some adapters."""

    def __init__(self):
        self.adapters = {}
        self.principals = set()

    async def GetAdapter(self, request, context):  # noqa: N802 - the method's name
        metadata = dict(context.invocation_metadata())
        self.principals.add(metadata["x-sfumato-principal"])
        name = request.name or request.training_run
        if name not in self.adapters:
            status = status_pb2.Status(
                code=code_pb2.NOT_FOUND, message=f"no adapter named {name!r}"
            )
            info = error_details_pb2.ErrorInfo(reason="RESOURCE_NOT_FOUND", domain="sfumato")
            status.details.add().Pack(info)
            await context.abort_with_status(rpc_status.to_status(status))
        return trainer_pb2.GetAdapterResponse(adapter=self.adapters[name])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trainer():
    trainer = Trainer()
    server = grpc.aio.server()
    trainer_pb2_grpc.add_TrainerServiceServicer_to_server(trainer, server)
    trainer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield trainer
    await server.stop(None)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(studio_of, trainer, tiny_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    async with studio_of(addresses__trainer=trainer.address) as studio:
        await publish_adapters(studio, trainer, tiny_models, folder)
        yield studio


async def publish_adapters(studio, trainer, tiny_models, folder):
    """Lays adapters among the blobs and tells the trainer of them."""
    for name, family, seed in (("a", "z-image", 1), ("b", "z-image", 2), ("f", "flux.1", 3)):
        file = folder / f"{name}.safetensors"
        write_adapter(file, tiny_models / family, family, seed)
        blob = await studio.platform.blobs.put(file, media_type=MEDIA_TYPE)
        trainer.adapters[f"adapter-{name}"] = adapter = trainer_pb2.Adapter(
            name=f"adapter-{name}",
            training_run=f"run-{name}",
            file=blobs_pb2.BlobRef(
                digest=blob.digest, size_bytes=blob.size_bytes, media_type=MEDIA_TYPE
            ),
            family=family,
            base_model=sources_pb2.ModelSource(directory={"path": family}),
        )
        trainer.adapters[f"run-{name}"] = adapter


def write_adapter(file, model, family, seed):
    """An adapter of a tiny model with random weights."""
    generator = torch.Generator().manual_seed(seed)
    denoiser = load_family(family).load_denoiser(model, precision="fp32")
    shape = AdapterShape(rank=4, alpha=4.0, targets=family_info(family).adapter_targets)
    parameters = inject_adapter(denoiser, shape)
    tensors = {
        name: torch.randn(parameter.shape, generator=generator) * 0.3
        for name, parameter in parameters.items()
    }
    save_adapter(file, tensors, shape, {"sfumato.family": family})


def by_run(name, **fields):
    return {"adapter": {"training_run": f"run-{name}"}, **fields}


def by_name(name, **fields):
    return {"adapter": {"adapter": f"adapter-{name}"}, **fields}


async def test_stacks_switch_and_leave_the_base_as_it_was(studio, trainer):
    async def picture(*adapters):
        made = await studio.make(seed=3, adapters=list(adapters))
        assert made.status.state == job_pb2.JOB_STATE_SUCCEEDED, made.status.error
        return made.images[0].file.digest

    bare = await picture()
    a, b = await picture(by_run("a")), await picture(by_name("b"))
    both, half = await picture(by_run("a"), by_run("b")), await picture(by_run("a", weight=0.5))
    assert len({bare, a, b, both, half}) == 5
    assert await picture(by_run("a")) == a
    assert await picture() == bare
    assert trainer.principals == {"local"}


async def test_record_recipe_and_log_name_the_adapters(studio, trainer):
    made = await studio.make(adapters=[by_name("a", weight=0.75)])
    file = trainer.adapters["adapter-a"].file
    stored = read_recipe(await studio.picture(made.images[0]))

    assert list(made.images[0].adapter_files) == [file]
    assert stored.recipe["adapters"] == [
        {"name": "adapter-a", "digest": file.digest, "weight": 0.75}
    ]
    assert made.resolved_configuration.adapters[0].adapter.adapter == "adapter-a"
    events = await studio.events(made.name)
    loading = [event.loading.component for event in events if event.HasField("loading")]
    assert loading[-1] == "adapter-a"


async def test_an_adapter_that_is_not_there_names_its_field(studio):
    with pytest.raises(NotFound) as refusal:
        await studio.create(adapters=[by_run("a"), by_run("none")])
    assert refusal.value.reason == "RESOURCE_NOT_FOUND"
    assert refusal.value.message.startswith("configuration.adapters[1].adapter: ")


async def test_an_adapter_of_another_family(studio):
    with pytest.raises(FailedPrecondition) as refusal:
        await studio.create(adapters=[by_run("f")])
    assert refusal.value.reason == "ADAPTER_INCOMPATIBLE"
    assert refusal.value.details["field"] == "configuration.adapters[0].adapter"


async def test_the_same_adapter_twice(studio):
    with pytest.raises(InvalidArgument) as refusal:
        await studio.create(adapters=[by_run("a"), by_name("a")])
    assert refusal.value.field_violations[0].field == "configuration.adapters[1].adapter"


async def test_an_adapter_whose_shapes_do_not_fit(studio, trainer):
    adapter = trainer_pb2.Adapter()
    adapter.CopyFrom(trainer.adapters["adapter-f"])
    adapter.family = "z-image"
    trainer.adapters["run-misfit"] = adapter
    failed = await studio.make(adapters=[by_run("misfit")])

    assert failed.status.error.reason == ADAPTER_INCOMPATIBLE
    assert (await studio.make()).status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_damaged_adapter_file_is_not_used(studio, trainer):
    source = studio.platform.blobs.folder.path(trainer.adapters["run-b"].file.digest)
    blob = await studio.platform.blobs.put(source.read_bytes() + b" ", media_type=MEDIA_TYPE)
    adapter = trainer_pb2.Adapter()
    adapter.CopyFrom(trainer.adapters["run-b"])
    adapter.file.digest = blob.digest
    trainer.adapters["run-damaged"] = adapter
    shutil.copyfile(source, studio.platform.blobs.folder.path(blob.digest))
    failed = await studio.make(adapters=[by_run("damaged")])

    assert failed.status.error.reason == BLOB_CORRUPT
    assert not failed.images


async def test_a_trainer_that_does_not_answer(studio_of):
    async with studio_of(addresses__trainer="127.0.0.1:1") as studio:
        with pytest.raises(Unavailable) as refusal:
            await studio.create(adapters=[by_run("a")])
    assert refusal.value.reason == "SERVICE_UNREACHABLE"
    assert refusal.value.retry_delay_seconds > 0
