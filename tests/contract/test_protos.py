"""Rules that every message and method of the public interface keeps."""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import (
    Descriptor,
    FieldDescriptor,
    MethodDescriptor,
    ServiceDescriptor,
)

from sfumato.job.v1 import bounds_pb2, errors_pb2
from sfumato_chassis.principals import Scope
from sfumato_chassis.validation import rules_of

PROTOS = Path(__file__).parents[2] / "protos"
FILES = sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.glob("sfumato/*/v1/*.proto"))
INTERNAL = {"sfumato.job.v1.WorkerService"}


def services() -> Iterator[ServiceDescriptor]:
    for file in FILES:
        importlib.import_module(file.removesuffix(".proto").replace("/", ".") + "_pb2")
        for service in descriptor_pool.Default().FindFileByName(file).services_by_name.values():
            if service.full_name not in INTERNAL:
                yield service


METHODS = [method for service in services() for method in service.methods]


def reachable(message: Descriptor, known: set[str] | None = None) -> Iterator[Descriptor]:
    known = set() if known is None else known
    if message.full_name in known:
        return
    known.add(message.full_name)
    yield message
    for field in message.fields:
        if field.message_type is not None:
            yield from reachable(field.message_type, known)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_a_method_declares_its_scope_and_its_own_messages(method: MethodDescriptor) -> None:
    assert method.GetOptions().Extensions[bounds_pb2.scope] in {*Scope}
    assert method.input_type.name == f"{method.name}Request"
    assert method.output_type.name == f"{method.name}Response"
    assert not method.client_streaming


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_bounds_compile_and_every_text_has_a_limit(method: MethodDescriptor) -> None:
    for message in reachable(method.input_type):
        if not message.full_name.startswith("sfumato."):
            continue
        rules_of(message)
        for field in message.fields:
            bounds = field.GetOptions().Extensions[bounds_pb2.bounds]
            if field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
                entry = message.GetOptions().map_entry
                limited = bounds.HasField("max_length") or bounds.pattern
                assert limited or entry, f"{field.full_name} has no limit"
            assert field.type != FieldDescriptor.TYPE_FLOAT, field.full_name
            if bounds.pattern:
                re.compile(bounds.pattern)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.full_name)
def test_work_can_be_repeated(method: MethodDescriptor) -> None:
    if method.name.startswith("Create"):
        request_id = method.input_type.fields_by_name["request_id"]
        assert request_id.GetOptions().Extensions[bounds_pb2.bounds].required
        assert "deduplicated" in method.output_type.fields_by_name
    if method.name.startswith("List"):
        assert {"page_size", "page_token"} <= set(method.input_type.fields_by_name)
        assert "next_page_token" in method.output_type.fields_by_name
    if method.name.startswith("Watch"):
        fields = set(method.input_type.fields_by_name)
        assert fields == {"name", "after_sequence", "log_id", "replay"}
        assert [field.name for field in method.output_type.fields] == [
            "attached",
            "snapshot",
            "event",
            "heartbeat",
            "going_away",
            "finished",
        ]


def test_every_zero_is_unspecified() -> None:
    for file in FILES:
        for enum in descriptor_pool.Default().FindFileByName(file).enum_types_by_name.values():
            prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper()
            assert enum.values_by_number[0].name == f"{prefix}_UNSPECIFIED"


def test_reasons_are_documented_with_their_status() -> None:
    text = (PROTOS / "sfumato/job/v1/errors.proto").read_text(encoding="utf-8")
    for name in errors_pb2.ErrorReason.keys()[1:]:
        assert re.search(rf"//[^\n]+\n  {name} = \d+;", text), name
