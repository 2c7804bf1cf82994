"""Models and settings that cannot work are refused at the door, with the component or the field."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from google.protobuf import json_format

from deployment import ServeProcess, client_of, import_emoji
from sfumato.trainer.v1 import trainer_pb2
from sfumato_client import Client, FailedPrecondition, InvalidArgument, SfumatoError
from sfumato_diffusion.families.registry import build_tiny

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the tiny z-image under ``models/whole``."""
    folder = tmp_path_factory.mktemp("data")
    build_tiny("z-image", folder / "models" / "whole")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(data_dir: Path) -> AsyncIterator[Client]:
    """Of a service that has one dataset."""
    process = ServeProcess(data_dir, only=("datasets", "trainer"))
    async with client_of(process.start()) as client:
        await import_emoji(client)
        yield client
    process.stop()


async def validate(client: Client, model: str = "whole", **fields: Any) -> trainer_pb2.TrainingRun:
    """What a run would be; none is made."""
    message = {
        "request_id": str(uuid.uuid4()),
        "validate_only": True,
        "configuration": {
            "base_model": {"directory": {"path": model}},
            "dataset": "emoji",
            **fields,
        },
    }
    request = json_format.ParseDict(message, trainer_pb2.CreateTrainingRunRequest())
    return (await client.trainer.create_training_run(request)).training_run


async def refusal_of(client: Client, model: str = "whole", **fields: Any) -> SfumatoError:
    with pytest.raises(SfumatoError) as refusal:
        await validate(client, model, **fields)
    return refusal.value


async def test_what_can_work_is_accepted(client: Client) -> None:
    run = await validate(client, family="zimage", target_modules=["to_q", "attention.to_out.0"])
    assert run.resolved_configuration.family == "z-image"


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"family": "flux.1"}, "family", "the model is z-image, not flux.1"),
        ({"target_modules": ["to_q", "to_x"]}, "target_modules", "to_x: no linear layer"),
        ({"target_modules": ["norm_q"]}, "target_modules", "norm_q: no linear layer"),
        ({"adam_epsilon": 1e-300}, "adam_epsilon", "at least"),
        ({"alpha": 1e-300}, "alpha", "at least"),
        ({"learning_rate": 1e-300}, "learning_rate", "at least"),
        ({"flow_shift": {"shift": 1e-300}}, "flow_shift.shift", "at least"),
        ({"flow_shift": {"shift": 1e300}}, "flow_shift.shift", "at most"),
        ({"max_gradient_norm": 1e-300}, "max_gradient_norm", "0, which is off"),
        ({"max_gradient_norm": 1e300}, "max_gradient_norm", "at most"),
    ],
)
async def test_a_setting_that_cannot_work_names_its_field(
    client: Client, fields: dict[str, Any], field: str, told: str
) -> None:
    error = await refusal_of(client, **fields)
    assert isinstance(error, InvalidArgument)
    assert [violation.field for violation in error.field_violations] == [f"configuration.{field}"]
    assert told in error.field_violations[0].description


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


async def test_a_resolution_for_which_the_model_has_no_positions(
    client: Client, data_dir: Path
) -> None:
    model = Path(shutil.copytree(data_dir / "models" / "whole", data_dir / "models" / "small"))
    change(model / "transformer" / "config.json", axes_lens=[1536, 32, 40])
    error = await refusal_of(client, "small", resolution=528)
    assert isinstance(error, InvalidArgument)
    assert [violation.field for violation in error.field_violations] == ["configuration.resolution"]
    assert "at most 512" in error.field_violations[0].description
    await validate(client, "small", resolution=512)


@pytest.mark.parametrize(
    ("damage", "reason", "component"),
    [
        (
            lambda m: next((m / "vae").glob("*.safetensors")).rename(m / "vae" / "weights.bin"),
            "WEIGHTS_UNSAFE",
            "vae",
        ),
        (lambda m: shutil.rmtree(m / "tokenizer"), "MODEL_UNSUPPORTED", "tokenizer"),
        (
            lambda m: change(m / "transformer" / "config.json", t_scale=float("nan")),
            "MODEL_UNSUPPORTED",
            "transformer",
        ),
        (
            lambda m: change(m / "scheduler" / "scheduler_config.json", num_train_timesteps=0),
            "MODEL_UNSUPPORTED",
            "scheduler",
        ),
        (
            lambda m: change(
                m / "scheduler" / "scheduler_config.json", _class_name="DDIMScheduler"
            ),
            "MODEL_UNSUPPORTED",
            "scheduler",
        ),
        (
            lambda m: change(m / "vae" / "config.json", scaling_factor=0),
            "MODEL_UNSUPPORTED",
            "vae",
        ),
        (
            lambda m: (m / "text_encoder" / "model.safetensors").write_bytes(
                (2).to_bytes(8, "little") + b"{}"
            ),
            "MODEL_UNSUPPORTED",
            "text_encoder",
        ),
        (
            lambda m: change(m / "transformer" / "config.json", axes_lens="many"),
            "MODEL_UNSUPPORTED",
            "transformer",
        ),
    ],
)
async def test_a_damaged_model_names_its_component(
    client: Client,
    data_dir: Path,
    damage: Callable[[Path], Any],
    reason: str,
    component: str,
) -> None:
    name = f"damaged-{uuid.uuid4().hex}"
    damage(Path(shutil.copytree(data_dir / "models" / "whole", data_dir / "models" / name)))
    error = await refusal_of(client, name)
    assert isinstance(error, FailedPrecondition)
    assert (error.reason, error.details["component"]) == (reason, component)
    assert str(data_dir) not in error.message
