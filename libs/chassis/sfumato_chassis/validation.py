"""Checks a request against the bounds that its proto declares (``sfumato/job/v1/bounds.proto``).

Whatever the bounds say: every double must be finite, every enum known and not UNSPECIFIED where it is
set, every string free of U+0000. Server, command line and worker call this one function.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.protobuf.unknown_fields import UnknownFieldSet

from sfumato.job.v1 import bounds_pb2
from sfumato_chassis.errors import FieldViolation, InvalidArgument, Reason

MAX_VIOLATIONS = 20
MAX_DURATION_SECONDS = 315_576_000_000
"""Ten thousand years, see google/protobuf/duration.proto."""
TIMESTAMP_SECONDS = range(-62_135_596_800, 253_402_300_800)
"""The years 1 to 9999, see google/protobuf/timestamp.proto."""
NANOS_PER_SECOND = 1_000_000_000

Check = Callable[[Any], str | None]
"""Takes one value; answers what is wrong with it, or None."""


def check_request(request: Message, *, refuse_unknown_fields: bool) -> None:
    """Raises InvalidArgument with the paths of all wrong fields (at most 20)."""
    violations: list[FieldViolation] = []
    for violation in find_violations(request, "", refuse_unknown_fields):
        violations.append(violation)
        if len(violations) == MAX_VIOLATIONS:
            break
    if violations:
        first = violations[0]
        raise InvalidArgument(
            Reason.FIELD_INVALID, f"{first.path}: {first.message}", violations=violations
        )


def find_violations(
    message: Message, prefix: str, refuse_unknown_fields: bool
) -> Iterator[FieldViolation]:
    """Yields what is wrong with ``message``, whose own path is ``prefix`` (empty or ending in a dot)."""
    if refuse_unknown_fields:
        for unknown in iter(UnknownFieldSet(message)):
            yield FieldViolation(path=f"{prefix}#{unknown.field_number}", message="unknown field")
    rules = rules_of(message.DESCRIPTOR)
    for oneof in rules.required_oneofs:
        if message.WhichOneof(oneof) is None:
            yield FieldViolation(path=f"{prefix}{oneof}", message="one of its members must be set")
    for name in rules.required_fields:
        if not is_present(message, name):
            yield FieldViolation(path=f"{prefix}{name}", message="must be set")
    for field, value in message.ListFields():
        yield from field_violations(rules, field, value, prefix, refuse_unknown_fields)


def field_violations(
    rules: "Rules", field: FieldDescriptor, value: Any, prefix: str, refuse_unknown_fields: bool
) -> Iterator[FieldViolation]:
    """Yields what is wrong with one field that is set."""
    path = f"{prefix}{field.name}"
    if field.is_repeated:
        maximum = rules.max_items.get(field.name)
        if maximum is not None and len(value) > maximum:
            yield FieldViolation(path=path, message=f"at most {maximum} items")
    if is_map(field):
        assert field.message_type is not None
        entry = field.message_type.fields_by_name
        for key, item in value.items():
            yield from value_violations(
                rules_of(field.message_type), entry["key"], key, f"{path}[{key!r}]", False
            )
            yield from value_violations(
                rules_of(field.message_type),
                entry["value"],
                item,
                f"{path}[{key!r}]",
                refuse_unknown_fields,
            )
    elif field.is_repeated:
        for index, item in enumerate(value):
            yield from value_violations(
                rules, field, item, f"{path}[{index}]", refuse_unknown_fields
            )
    else:
        yield from value_violations(rules, field, value, path, refuse_unknown_fields)


def value_violations(
    rules: "Rules", field: FieldDescriptor, value: Any, path: str, refuse_unknown_fields: bool
) -> Iterator[FieldViolation]:
    """Yields what is wrong with one value of a field."""
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        problem = time_problem(value)
        if problem is not None:
            yield FieldViolation(path=path, message=problem)
        yield from find_violations(value, f"{path}.", refuse_unknown_fields)
        return
    for check in rules.checks[field.name]:
        problem = check(value)
        if problem is not None:
            yield FieldViolation(path=path, message=problem)
            return


def time_problem(value: Message) -> str | None:
    """What is wrong with a Duration or Timestamp; None for other messages too."""
    match value:
        case Duration(seconds=seconds, nanos=nanos):
            opposed = seconds > 0 > nanos or seconds < 0 < nanos
            if abs(seconds) > MAX_DURATION_SECONDS or abs(nanos) >= NANOS_PER_SECOND or opposed:
                return "not a duration"
        case Timestamp(seconds=seconds, nanos=nanos):
            if seconds not in TIMESTAMP_SECONDS or not 0 <= nanos < NANOS_PER_SECOND:
                return "not a time"
    return None


def is_present(message: Message, name: str) -> bool:
    """Whether a field is set to something that is not empty."""
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.is_repeated:
        return len(getattr(message, name)) > 0
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message.HasField(name)
    if (
        field.containing_oneof is not None
        and message.WhichOneof(field.containing_oneof.name) != name
    ):
        return True
    return bool(getattr(message, name))


def is_map(field: FieldDescriptor) -> bool:
    """Whether the field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


class Rules:
    """The compiled bounds of one message type."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.required_fields: list[str] = []
        self.max_items: dict[str, int] = {}
        self.checks: dict[str, Sequence[Check]] = {}
        self.required_oneofs = [
            oneof.name
            for oneof in descriptor.oneofs
            if oneof.GetOptions().Extensions[bounds_pb2.oneof_required]
        ]
        for field in descriptor.fields:
            bounds = field.GetOptions().Extensions[bounds_pb2.bounds]
            if bounds.required:
                self.required_fields.append(field.name)
            if field.is_repeated and bounds.HasField("max_length"):
                self.max_items[field.name] = bounds.max_length
            self.checks[field.name] = list(compile_checks(field, bounds))


@cache
def rules_of(descriptor: Descriptor) -> Rules:
    """The rules of a message type, compiled once."""
    return Rules(descriptor)


def compile_checks(field: FieldDescriptor, bounds: bounds_pb2.Bounds) -> Iterator[Check]:
    """Yields the checks that hold for each value of ``field``."""
    kind = field.cpp_type
    if kind in {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}:
        yield lambda value: None if math.isfinite(value) else "must be a finite number"
        yield from number_checks(bounds)
    elif kind in {
        FieldDescriptor.CPPTYPE_INT32,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
        FieldDescriptor.CPPTYPE_UINT64,
    }:
        yield from number_checks(bounds)
    elif kind == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        known = {value.number for value in field.enum_type.values} - {0}
        yield lambda value: None if value in known else "unspecified or unknown value"
    elif kind == FieldDescriptor.CPPTYPE_STRING:
        yield from text_checks(field, bounds)


def number_checks(bounds: bounds_pb2.Bounds) -> Iterator[Check]:
    """Yields the range checks of a number."""
    if bounds.HasField("minimum"):
        minimum = bounds.minimum
        yield lambda value: None if value >= minimum else f"must be at least {minimum:.17g}"
    if bounds.HasField("maximum"):
        maximum = bounds.maximum
        yield lambda value: None if value <= maximum else f"must be at most {maximum:.17g}"
    if bounds.HasField("above"):
        above = bounds.above
        yield lambda value: None if value > above else f"must be greater than {above:.17g}"
    if bounds.HasField("below"):
        below = bounds.below
        yield lambda value: None if value < below else f"must be less than {below:.17g}"


def text_checks(field: FieldDescriptor, bounds: bounds_pb2.Bounds) -> Iterator[Check]:
    """Yields the checks of a string or bytes field."""
    if not field.is_repeated and bounds.HasField("max_length"):
        maximum = bounds.max_length
        unit = "characters" if field.type == FieldDescriptor.TYPE_STRING else "bytes"
        yield lambda value: None if len(value) <= maximum else f"at most {maximum} {unit}"
    if field.type != FieldDescriptor.TYPE_STRING:
        return
    yield lambda value: "must not hold U+0000" if "\0" in value else None
    if bounds.pattern:
        pattern = re.compile(bounds.pattern)
        text = bounds.pattern
        yield lambda value: None if pattern.fullmatch(value) else f"must match {text}"
