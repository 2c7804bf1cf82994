"""Every public RPC of datasets and blobs with messages that nobody should send."""

import importlib
import random
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from datasets_server import Running, imported, running, upload
from pictures import write_pictures
from refusals import AioCall, read_refusal
from sfumato_chassis.errors import CATALOGUE, Reason

SERVICES = {
    "sfumato.datasets.v1.datasets_pb2": "DatasetsService",
    "sfumato.blobs.v1.blobs_pb2": "BlobService",
}
METHODS: list[MethodDescriptor] = [
    method
    for module, name in SERVICES.items()
    for method in importlib.import_module(module).DESCRIPTOR.services_by_name[name].methods
]
NUM_MESSAGES = 40
TEXTS = ["", "cats", ".", "..", "../../etc", "/etc/passwd", "a\0b", "\u202e", "x" * 5000, "é", "%s"]
NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 7]
ACCEPTED = {reason.value for reason in CATALOGUE} - {Reason.INTERNAL}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    write_pictures(tmp_path / "root" / "cats", 1)
    overrides = {"datasets.import_roots": (tmp_path / "root",), "server.unary_deadline_seconds": 5}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


class Fuzzer:
    """Fills messages by their descriptors, with known names here and there."""

    def __init__(self, seed: str, known: list[str]) -> None:
        self._random = random.Random(seed)
        self._texts = [*TEXTS, *known]

    def message(self, descriptor: Descriptor, depth: int = 0) -> Message:
        message = message_factory.GetMessageClass(descriptor)()
        for field in descriptor.fields:
            if self._random.random() < 0.3 or depth > 3:
                continue
            if field.is_repeated:
                values = [self._value(field, depth) for _ in range(self._random.randrange(4))]
                getattr(message, field.name).extend(values)
            elif field.message_type is not None:
                getattr(message, field.name).CopyFrom(self._value(field, depth))
            else:
                setattr(message, field.name, self._value(field, depth))
        return message

    def _value(self, field: FieldDescriptor, depth: int) -> Any:
        choose = self._random.choice
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_MESSAGE:
                assert field.message_type is not None
                return self.message(field.message_type, depth + 1)
            case FieldDescriptor.CPPTYPE_STRING:
                if field.type == FieldDescriptor.TYPE_BYTES:
                    return self._random.randbytes(self._random.randrange(64))
                return choose(self._texts)
            case FieldDescriptor.CPPTYPE_BOOL:
                return choose([True, False])
            case FieldDescriptor.CPPTYPE_ENUM:
                return choose([0, 1, 2, 99, -1])
            case FieldDescriptor.CPPTYPE_INT32:
                return choose([n for n in NUMBERS if -(2**31) <= n < 2**31])
            case FieldDescriptor.CPPTYPE_UINT32:
                return choose([n for n in NUMBERS if 0 <= n < 2**32])
            case _:
                return choose(NUMBERS)

    def mutated(self, body: bytes) -> bytes:
        """Some bytes changed, and sometimes cut."""
        changed = bytearray(body or b"\x0a\x01a")
        for _ in range(self._random.randrange(1, 4)):
            changed[self._random.randrange(len(changed))] = self._random.randrange(256)
        return bytes(changed[: self._random.randrange(1, len(changed) + 1)])


async def reason_of(server: Running, method: MethodDescriptor, body: bytes) -> str:
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.server_streaming:
            async for _ in server.stubs.channel.unary_stream(path)(body, timeout=10):
                continue
        else:
            await server.stubs.channel.unary_unary(path)(body, timeout=10)
    except grpc.aio.AioRpcError as error:
        return read_refusal(AioCall(error)).reason
    return "OK"


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_every_answer_is_a_documented_one(
    server: Running, tmp_path: Path, method: MethodDescriptor
) -> None:
    end = await imported(server.stubs, "cats")
    digest = await upload(server.stubs, b"abc")
    known = [end.name, end.status.log_id, digest, str(uuid.UUID(int=7)), "local"]
    fuzzer = Fuzzer(method.full_name, known)
    outside = {path for path in tmp_path.iterdir() if path.name != "data"}
    for _ in range(NUM_MESSAGES):
        body = fuzzer.message(method.input_type).SerializeToString()
        for sent in (body, fuzzer.mutated(body)):
            reason = await reason_of(server, method, sent)
            assert reason in {"OK", *ACCEPTED}, (reason, sent)
    assert {path for path in tmp_path.iterdir() if path.name != "data"} == outside
    assert (await imported(server.stubs, "cats", f"after {method.name}")).version.number == 1
