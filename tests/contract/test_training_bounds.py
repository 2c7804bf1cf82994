"""The limits that a worker keeps are those of the proto, field by field."""

from __future__ import annotations

import math

import pytest

from sfumato.job.v1 import bounds_pb2
from sfumato.trainer.v1 import configuration_pb2
from sfumato_trainer.messages import SETTINGS_FIELDS
from sfumato_trainer.settings import BOUNDS, Bound

CONFIGURATION = configuration_pb2.TrainingConfiguration.DESCRIPTOR
NUMERIC = [name for name in SETTINGS_FIELDS if name in BOUNDS]


def declared(field: str) -> Bound:
    descriptor = CONFIGURATION.fields_by_name[field]
    if field == "flow_shift":
        descriptor = configuration_pb2.FlowShift.DESCRIPTOR.fields_by_name["shift"]
    bounds = descriptor.GetOptions().Extensions[bounds_pb2.bounds]
    return Bound(
        minimum=bounds.above if bounds.HasField("above") else bounds.minimum,
        maximum=bounds.below
        if bounds.HasField("below")
        else (bounds.maximum if bounds.HasField("maximum") else math.inf),
        above=bounds.HasField("above"),
        below=bounds.HasField("below"),
    )


def test_every_bounded_setting_is_a_field() -> None:
    assert set(NUMERIC) == set(BOUNDS)


@pytest.mark.parametrize("name", NUMERIC)
def test_bounds_are_equal(name: str) -> None:
    assert BOUNDS[name] == declared(name)
