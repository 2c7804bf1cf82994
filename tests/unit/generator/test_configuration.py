"""Configurations, as records, JSON and messages."""

import pytest
from google.protobuf import json_format

from sfumato.generator.v1 import generator_pb2
from sfumato_generator import messages
from sfumato_generator.configuration import AdapterChoice, Configuration, ModelSource

CONFIGURATION = Configuration(
    model=ModelSource(kind="hub", reference="Tongyi-MAI/Z-Image", revision="main"),
    family="z-image",
    prompt="a fox \U0001f98a",
    negative_prompt="blurry",
    width=768,
    height=512,
    steps=20,
    guidance=4.0,
    seed=2**53 - 64,
    count=64,
    adapters=(
        AdapterChoice(kind="training_run", reference="run-1", weight=0.25),
        AdapterChoice(kind="adapter", reference="adapter-2", weight=-1.0),
    ),
    workflow="text_to_image",
)
DIRECTORY = ModelSource(kind="directory", reference="z-image")


def test_json_and_back():
    assert Configuration.from_json(CONFIGURATION.to_json()) == CONFIGURATION


@pytest.mark.parametrize("source", [CONFIGURATION.model, DIRECTORY])
def test_a_source_as_json_and_back(source):
    assert ModelSource.from_json(source.to_json()) == source


def test_the_json_is_that_of_the_message():
    """A message made of it asks for the very same generation, with nothing left out or invented."""
    message = messages.configuration_message(CONFIGURATION.to_json())
    asked = messages.generation_request(message)

    for field in Configuration.__slots__:
        assert getattr(asked, field) == getattr(CONFIGURATION, field)
    set_fields = {field.name for field, _ in message.ListFields()}
    assert set_fields == {field.name for field in message.DESCRIPTOR.fields}


def test_what_is_not_set_is_not_asked_for():
    bare = json_format.ParseDict(
        {"model": DIRECTORY.to_json(), "prompt": "a fox", "text_to_image": {}},
        generator_pb2.GenerationConfiguration(),
    )
    asked = messages.generation_request(bare)

    for field in ("family", "negative_prompt", "width", "steps", "guidance", "seed", "count"):
        assert getattr(asked, field) is None
    zero = messages.generation_request(
        generator_pb2.GenerationConfiguration(seed=0, guidance=0.0, model=bare.model)
    )
    assert (zero.seed, zero.guidance) == (0, 0.0)


@pytest.mark.parametrize(
    ("message", "kind", "reference"),
    [
        ({"hub": {"id": "a/b"}}, "hub", "a/b"),
        ({"upload_digest": "sha256:00"}, "upload_digest", "sha256:00"),
        ({"training_run": "run-1"}, "training_run", "run-1"),
    ],
)
def test_every_source_of_an_adapter(message, kind, reference):
    weighted = generator_pb2.GenerationConfiguration().adapters.add()
    json_format.ParseDict({"adapter": message}, weighted)
    choice = messages.adapter_choice(weighted)
    assert choice == AdapterChoice(kind=kind, reference=reference, weight=1.0)
