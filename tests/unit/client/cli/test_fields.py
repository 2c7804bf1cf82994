"""Options made from the fields of a message."""

from __future__ import annotations

import math

import pytest

from sfumato.generator.v1 import generator_pb2
from sfumato.job.v1 import bounds_pb2
from sfumato.trainer.v1 import configuration_pb2
from sfumato_client.cli import generating, training
from sfumato_client.cli.fields import choices, describe
from sfumato_client.cli.main import main

HANDLED_BY_HAND = {
    "base_model",
    "dataset",
    "flow_shift",
    "model",
    "prompt",
    "adapters",
    "text_to_image",
}


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message", "names"),
    [
        (
            ("train", "start"),
            configuration_pb2.TrainingConfiguration,
            training.CONFIGURATION.names,
        ),
        (
            ("generate",),
            generator_pb2.GenerationConfiguration,
            generating.CONFIGURATION.names,
        ),
    ],
    ids=["train", "generate"],
)
def test_every_field_has_an_option(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: type[configuration_pb2.TrainingConfiguration],
    names: dict[str, str],
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    text = help_of(capsys, *words)
    for field in message.DESCRIPTOR.fields:
        if field.name not in HANDLED_BY_HAND:
            assert (names.get(field.name) or "--" + field.name.replace("_", "-")) in text


def test_bounds_are_told() -> None:
    fields = configuration_pb2.TrainingConfiguration.DESCRIPTOR.fields_by_name
    told = {
        name: describe(fields[name].GetOptions().Extensions[bounds_pb2.bounds], is_repeated=False)
        for name in ("rank", "alpha", "ema_decay", "seed", "display")
        if name in fields
    }
    assert told == {
        "rank": "at least 1, at most 320",
        "alpha": "at least 0.001, at most 1024",
        "ema_decay": "at least 0, below 1",
        "seed": f"at least 0, at most {2**53 - 1}",
    }


def test_choices_leave_out_unspecified() -> None:
    assert choices(configuration_pb2.ComputePrecision.DESCRIPTOR) == {
        "bf16": configuration_pb2.COMPUTE_PRECISION_BF16,
        "fp32": configuration_pb2.COMPUTE_PRECISION_FP32,
        "fp16": configuration_pb2.COMPUTE_PRECISION_FP16,
    }


@pytest.mark.parametrize("text", ["auto", "3", "0.5"])
def test_flow_shift(text: str) -> None:
    shift = training.parse_flow_shift(text)
    if text == "auto":
        assert shift.WhichOneof("value") == "automatic"
    else:
        assert math.isclose(shift.shift, float(text))
