"""A message with every kind of bound, made here, and the messages of the public interface."""

import math
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    json_format,
    message_factory,
    timestamp_pb2,
)
from google.protobuf.message import Message

from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import bounds_pb2
from sfumato_chassis.errors import InvalidArgument
from sfumato_chassis.validation import MAX_VIOLATIONS, check_request

Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "minimum": (Field.TYPE_DOUBLE, {"minimum": 0.5}),
    "maximum": (Field.TYPE_DOUBLE, {"maximum": 2}),
    "above": (Field.TYPE_DOUBLE, {"above": 0}),
    "below": (Field.TYPE_DOUBLE, {"below": 1}),
    "unbounded": (Field.TYPE_DOUBLE, {}),
    "single": (Field.TYPE_FLOAT, {}),
    "number": (Field.TYPE_INT64, {"minimum": -3, "maximum": 9007199254740992}),
    "count": (Field.TYPE_UINT32, {"maximum": 7}),
    "text": (Field.TYPE_STRING, {"max_length": 4}),
    "word": (Field.TYPE_STRING, {"pattern": "[a-z]+"}),
    "data": (Field.TYPE_BYTES, {"max_length": 4}),
}


def add_field(
    message: descriptor_pb2.DescriptorProto, name: str, kind: int, **settings: Any
) -> descriptor_pb2.FieldDescriptorProto:
    bounds = settings.pop("bounds", {})
    field = message.field.add(
        name=name,
        number=len(message.field) + 1,
        type=kind,
        label=settings.pop("label", Field.LABEL_OPTIONAL),
        **settings,
    )
    field.options.Extensions[bounds_pb2.bounds].MergeFrom(bounds_pb2.Bounds(**bounds))
    return field


def make_bounded() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(
        name="tests/bounded.proto",
        package="tests.bounded",
        syntax="proto3",
        dependency=[
            bounds_pb2.DESCRIPTOR.name,
            duration_pb2.DESCRIPTOR.name,
            timestamp_pb2.DESCRIPTOR.name,
        ],
    )
    kind = file.enum_type.add(name="Kind")
    for number, name in enumerate(["KIND_UNSPECIFIED", "KIND_ONE"]):
        kind.value.add(name=name, number=number)
    message = file.message_type.add(name="Bounded")
    repeated, a_message = Field.LABEL_REPEATED, Field.TYPE_MESSAGE
    for name, (scalar, bounds) in SCALARS.items():
        add_field(message, name, scalar, bounds=bounds)
    for name, type_name in [
        ("inner", ".tests.bounded.Bounded"),
        ("lease", ".google.protobuf.Duration"),
        ("time", ".google.protobuf.Timestamp"),
    ]:
        add_field(message, name, a_message, type_name=type_name)
    add_field(message, "kind", Field.TYPE_ENUM, type_name=".tests.bounded.Kind")
    add_field(message, "kinds", Field.TYPE_ENUM, type_name=".tests.bounded.Kind", label=repeated)
    add_field(message, "numbers", Field.TYPE_DOUBLE, label=repeated, bounds={"max_length": 3})
    add_field(message, "inners", a_message, type_name=".tests.bounded.Bounded", label=repeated)
    for name, value, type_name in [
        ("weights", Field.TYPE_DOUBLE, ""),
        ("by_name", a_message, ".tests.bounded.Bounded"),
    ]:
        entry_name = "".join(part.title() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        add_field(entry, "key", Field.TYPE_STRING)
        add_field(entry, "value", value, **({"type_name": type_name} if type_name else {}))
        add_field(
            message,
            name,
            a_message,
            type_name=f".tests.bounded.Bounded.{entry_name}",
            label=repeated,
        )
    add_choices(file)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tests.bounded.Bounded"))


def add_choices(file: descriptor_pb2.FileDescriptorProto) -> None:
    required = file.message_type.add(name="Required")
    choice = required.oneof_decl.add(name="choice")
    choice.options.Extensions[bounds_pb2.oneof_required] = True
    must = {"required": True}
    add_field(required, "left", Field.TYPE_STRING, oneof_index=0, bounds=must)
    add_field(required, "right", Field.TYPE_INT32, oneof_index=0)
    add_field(required, "name", Field.TYPE_STRING, bounds=must)
    add_field(required, "names", Field.TYPE_STRING, label=Field.LABEL_REPEATED, bounds=must)
    add_field(
        required, "inner", Field.TYPE_MESSAGE, type_name=".tests.bounded.Bounded", bounds=must
    )


Bounded: Any = make_bounded()
Required: Any = message_factory.GetMessageClass(
    descriptor_pool.Default().FindMessageTypeByName("tests.bounded.Required")
)


def wrong_fields(message: Message, *, refuse_unknown_fields: bool = True) -> dict[str, str]:
    try:
        check_request(message, refuse_unknown_fields=refuse_unknown_fields)
    except InvalidArgument as error:
        return {violation.path: violation.message for violation in error.violations}
    return {}


@pytest.mark.parametrize(
    "fields",
    [
        {"minimum": 0.5, "maximum": 2, "above": 5e-324, "below": math.nextafter(1, 0)},
        {"number": -3, "count": 7},
        {"number": 9007199254740992},
        {"text": "äöü€", "word": "abc", "data": b"1234"},
        {"kind": 1, "kinds": [1, 1], "numbers": [1, 2, 3]},
        {"lease": duration_pb2.Duration(seconds=-315_576_000_000, nanos=-999_999_999)},
        {"time": timestamp_pb2.Timestamp(seconds=253_402_300_799, nanos=999_999_999)},
        {"inner": Bounded(minimum=1), "weights": {"a": 1e308}, "by_name": {"b": Bounded()}},
    ],
)
def test_values_within_their_bounds_pass(fields: dict[str, Any]) -> None:
    assert wrong_fields(Bounded(**fields)) == {}


@pytest.mark.parametrize(
    ("fields", "path", "told"),
    [
        ({"minimum": math.nextafter(0.5, 0)}, "minimum", "must be at least 0.5"),
        ({"maximum": math.nextafter(2, 3)}, "maximum", "must be at most 2"),
        ({"above": -0.1}, "above", "must be greater than 0"),
        ({"below": 1.0}, "below", "must be less than 1"),
        ({"unbounded": math.nan}, "unbounded", "must be a finite number"),
        ({"unbounded": math.inf}, "unbounded", "must be a finite number"),
        ({"single": -math.inf}, "single", "must be a finite number"),
        ({"number": -4}, "number", "must be at least -3"),
        ({"number": 9007199254740993}, "number", "must be at most 9007199254740992"),
        ({"count": 8}, "count", "must be at most 7"),
        ({"text": "äöü€!"}, "text", "at most 4 characters"),
        ({"text": "a\0"}, "text", "must not hold U+0000"),
        ({"word": "abc\n"}, "word", "must match [a-z]+"),
        ({"word": "aBc"}, "word", "must match [a-z]+"),
        ({"data": b"12345"}, "data", "at most 4 bytes"),
        ({"kind": 2}, "kind", "unspecified or unknown value"),
        ({"kinds": [1, 0]}, "kinds[1]", "unspecified or unknown value"),
        ({"numbers": [1, 2, 3, 4]}, "numbers", "at most 3 items"),
        ({"numbers": [1, math.nan]}, "numbers[1]", "must be a finite number"),
        ({"weights": {"a": math.inf}}, "weights['a']", "must be a finite number"),
        ({"weights": {"a\0": 1}}, r"weights['a\x00']", "must not hold U+0000"),
        ({"by_name": {"b": Bounded(count=8)}}, "by_name['b'].count", "must be at most 7"),
        ({"inner": Bounded(inner=Bounded(count=8))}, "inner.inner.count", "must be at most 7"),
        ({"inners": [Bounded(), Bounded(count=8)]}, "inners[1].count", "must be at most 7"),
        ({"lease": duration_pb2.Duration(seconds=2**62)}, "lease", "not a duration"),
        ({"lease": duration_pb2.Duration(nanos=10**9)}, "lease", "not a duration"),
        ({"lease": duration_pb2.Duration(seconds=1, nanos=-1)}, "lease", "not a duration"),
        ({"time": timestamp_pb2.Timestamp(seconds=253_402_300_800)}, "time", "not a time"),
        ({"time": timestamp_pb2.Timestamp(nanos=-1)}, "time", "not a time"),
    ],
)
def test_a_value_out_of_bounds_is_named(fields: dict[str, Any], path: str, told: str) -> None:
    assert wrong_fields(Bounded(**fields)) == {path: told}


def test_an_explicit_unspecified_is_refused_where_presence_is_known() -> None:
    request = imports_pb2.CreateImportRequest(
        request_id="0" * 8 + "-0000-0000-0000-" + "0" * 12,
        dataset="cats",
        folder=imports_pb2.FolderSource(path="."),
        mode=imports_pb2.IMPORT_MODE_UNSPECIFIED,
    )
    assert wrong_fields(request) == {"mode": "unspecified or unknown value"}


@pytest.mark.parametrize("number", ["1e309", '"NaN"', '"-Infinity"', "1e400"])
def test_numbers_that_json_lets_through_are_refused(number: str) -> None:
    message = Bounded()
    try:
        json_format.Parse(f'{{"unbounded": {number}}}', message)
    except json_format.ParseError:
        return
    assert wrong_fields(message) == {"unbounded": "must be a finite number"}


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({}, {"choice", "name", "names", "inner"}),
        ({"left": "", "name": "a", "names": ["b"], "inner": Bounded()}, {"left"}),
        ({"right": 0, "name": "a", "names": ["b"], "inner": Bounded()}, set()),
        ({"right": 0, "name": "", "names": [""], "inner": Bounded()}, {"name"}),
    ],
)
def test_what_must_be_set(fields: dict[str, Any], paths: set[str]) -> None:
    assert wrong_fields(Required(**fields)).keys() == paths


def test_unknown_fields_are_named_at_their_depth_or_left_alone() -> None:
    field_127 = b"\xf8\x07\x01"
    message = Bounded()
    message.inner.ParseFromString(field_127)
    message.by_name["k"].ParseFromString(field_127)
    assert wrong_fields(message).keys() == {"inner.#127", "by_name['k'].#127"}
    assert wrong_fields(message, refuse_unknown_fields=False) == {}


def test_no_more_violations_than_can_be_told() -> None:
    message = Bounded(kinds=[0] * 50)
    assert len(wrong_fields(message)) == MAX_VIOLATIONS
