"""Command-line options made from the fields of a message, so that nothing is declared twice."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, cast

import typer
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from sfumato.job.v1 import bounds_pb2

MessageT = TypeVar("MessageT", bound=Message)

SCALAR_TYPES: Mapping[int, type] = {
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_INT32: int,
    FieldDescriptor.TYPE_INT64: int,
    FieldDescriptor.TYPE_STRING: str,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldOptions(Generic[MessageT]):
    """Options for the fields of one message.

    Fields that are messages themselves have no option; neither have those in `leave_out`. Bounds
    are shown in the help and checked with the whole request, not here.
    """

    message_type: type[MessageT]
    leave_out: Collection[str] = ()
    # Field name to option, where it is not `--field-name`.
    names: Mapping[str, str]

    def of_parameter(self, parameter: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Decorates a command: its `parameter`, a message, is filled from one option per field."""

        def decorate(command: Callable[..., None]) -> Callable[..., None]:
            fields = {field.name: field for field in self._fields()}

            def with_options(**values: Any) -> None:
                message = self.message_type()
                for name, field in fields.items():
                    _assign(message, field, values.pop(name))
                command(**values, **{parameter: message})

            _copy_face(command, with_options, parameter, map(self._parameter, fields.values()))
            return with_options

        return decorate

    def _fields(self) -> list[FieldDescriptor]:
        # The two implementations of protobuf have no common type for mypy to find.
        descriptor = cast(Descriptor, self.message_type.DESCRIPTOR)
        return [
            field
            for field in descriptor.fields
            if field.name not in self.leave_out and field.type != FieldDescriptor.TYPE_MESSAGE
        ]

    def _parameter(self, field: FieldDescriptor) -> inspect.Parameter:
        option = self.names.get(field.name) or "--" + field.name.replace("_", "-")
        if field.type == FieldDescriptor.TYPE_BOOL:
            option = f"{option}/--no-{option.removeprefix('--')}"
        value_type: Any = _value_type(field)
        if field.is_repeated:
            value_type = list[value_type]
        bounds = field.GetOptions().Extensions[bounds_pb2.bounds]
        return inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                value_type | None,
                typer.Option(option, help=describe(bounds, is_repeated=field.is_repeated)),
            ],
        )


def describe(bounds: bounds_pb2.Bounds, *, is_repeated: bool) -> str:
    """Bounds of a number for people, e.g. `above 0, at most 1024`."""
    parts = []
    if bounds.HasField("minimum"):
        parts.append(f"at least {bounds.minimum:.16g}")
    if bounds.HasField("above"):
        parts.append(f"above {bounds.above:.16g}")
    if bounds.HasField("maximum"):
        parts.append(f"at most {bounds.maximum:.16g}")
    if bounds.HasField("below"):
        parts.append(f"below {bounds.below:.16g}")
    if is_repeated:
        parts.append("may be given several times")
    return ", ".join(parts)


def choices(descriptor: EnumDescriptor | None) -> dict[str, int]:
    """Words of the command line and their numbers: `bf16` for COMPUTE_PRECISION_BF16."""
    assert descriptor is not None, "only fields of an enum type have choices"
    prefix = descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
    return {
        value.name.removeprefix(prefix).lower(): value.number
        for value in descriptor.values
        if value.number != 0
    }


def _value_type(field: FieldDescriptor) -> type:
    if field.type == FieldDescriptor.TYPE_ENUM:
        words = list(choices(field.enum_type))
        # mypy takes the functional form for an instance.
        return cast(type, enum.StrEnum(field.enum_type.name, words))
    return SCALAR_TYPES[field.type]


def _assign(message: Message, field: FieldDescriptor, value: Any) -> None:
    if value is None:
        return
    if field.is_repeated:
        getattr(message, field.name).extend(value)
    elif field.type == FieldDescriptor.TYPE_ENUM:
        setattr(message, field.name, choices(field.enum_type)[str(value)])
    else:
        try:
            setattr(message, field.name, value)
        except UnicodeEncodeError:  # a ValueError as well, but told like that of any other text
            raise
        except ValueError as error:  # an integer that its field cannot hold
            raise typer.BadParameter(f"{field.name}: {error}") from error


def _copy_face(
    command: Callable[..., None],
    replacement: Callable[..., None],
    parameter: str,
    options: Any,
) -> None:
    """Gives `replacement` the name, help and signature of `command`, with options for `parameter`."""
    signature = inspect.signature(command, eval_str=True)
    kept = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        if each.name != parameter
    ]
    parameters = [*kept, *options]
    replacement.__name__ = command.__name__
    replacement.__doc__ = command.__doc__
    replacement.__annotations__ = {each.name: each.annotation for each in parameters}
    replacement.__dict__["__signature__"] = inspect.Signature(parameters)
