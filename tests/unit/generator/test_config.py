"""[generator]."""

import pytest

from sfumato_chassis.config import ConfigError, load_config
from sfumato_generator.config import GeneratorConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision", "fp8"),
        ("device", "gpu"),
        ("device", "cuda"),
        ("device", "cuda:01"),
        ("device", "cuda:\u0661"),
        ("max_resident_models", 0),
        ("idle_unload_seconds", -1.0),
        ("max_queued_generations", -1),
        ("generation_retention_hours", -1.0),
    ],
)
def test_values_that_cannot_be_used(field, value):
    with pytest.raises(ConfigError, match=rf"generator\.{field}"):
        load_config(
            {"generator": GeneratorConfig},
            file=None,
            environment={},
            overrides={f"generator.{field}": value},
        )
