"""NaN, infinities, values that overflow to them, and misspelt fields never get in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from deployment import ServeProcess
from sfumato.trainer.v1 import trainer_pb2
from sfumato_client.errors import Failure, failure_of

CREATE = "sfumato.trainer.v1.TrainerService/CreateTrainingRun"
GRPCURL = Path(sys.executable).with_name("grpcurl")
PATHS = {
    "learning_rate": "configuration.learning_rate",
    "flow_shift": "configuration.flow_shift.shift",
}
BAD_JSON = ["NaN", "Infinity", "-Infinity", 1e308 * 10, 0, -1]


def body(field: str, value: object) -> str:
    configuration: dict[str, object] = {
        "base_model": {"directory": {"path": "tiny-z-image"}},
        "dataset": "emoji",
    }
    configuration[field] = {"shift": value} if field == "flow_shift" else value
    request = {
        "request_id": "6f0f3bd2-51a5-4a86-8f1c-0c3f3f3f3f3f",
        "configuration": configuration,
    }
    # An infinity is written as the number that overflows to it.
    return (
        json.dumps(request).replace("Infinity", "1e309") if value == 1e309 else json.dumps(request)
    )


def parse(text: str) -> trainer_pb2.CreateTrainingRunRequest:
    return json_format.Parse(text, trainer_pb2.CreateTrainingRunRequest())


async def refusal(serve: ServeProcess, data: bytes) -> Failure:
    async with grpc.aio.insecure_channel(serve.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(f"/{CREATE}")(data)
    failure = failure_of(raised.value)
    assert (failure.code, failure.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    return failure


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    process = ServeProcess(tmp_path_factory.mktemp("data"), only=("datasets", "trainer"))
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("field", PATHS)
@pytest.mark.parametrize("value", BAD_JSON, ids=str)
async def test_protobuf_json_and_binary(shared: ServeProcess, field: str, value: object) -> None:
    try:
        message: Message = parse(body(field, value))
    except json_format.ParseError:
        # The library refuses a number that overflows by itself; the bytes are then made by hand.
        assert value == 1e309
        message = parse(body(field, "Infinity"))
    error = await refusal(shared, message.SerializeToString())
    assert [violation.field for violation in error.field_violations] == [PATHS[field]]


@pytest.mark.parametrize("field", PATHS)
@pytest.mark.parametrize("value", BAD_JSON, ids=str)
def test_grpcurl(shared: ServeProcess, field: str, value: object) -> None:
    finished = subprocess.run(
        [str(GRPCURL), "-plaintext", "-d", body(field, value), shared.address, CREATE],
        capture_output=True,
        text=True,
    )
    assert finished.returncode != 0
    refused_here = "value out of range" in finished.stderr or "invalid" in finished.stderr.lower()
    assert PATHS[field] in finished.stderr or (value == 1e309 and refused_here), finished.stderr


def test_grpcurl_names_a_misspelt_field(shared: ServeProcess) -> None:
    finished = subprocess.run(
        [
            *(str(GRPCURL), "-plaintext"),
            *("-d", body("learning_rat", 0.001), shared.address, CREATE),
        ],
        capture_output=True,
        text=True,
    )
    assert finished.returncode != 0
    assert "learning_rat" in finished.stderr


async def test_unknown_fields_in_binary_are_named(shared: ServeProcess) -> None:
    message = parse(body("learning_rate", 0.001))
    # Field 999 of the configuration, a varint: a name that this server does not know.
    message.configuration.MergeFromString(b"\xb8\x3e\x01")
    error = await refusal(shared, message.SerializeToString())
    assert [violation.field for violation in error.field_violations] == ["configuration.#999"]
