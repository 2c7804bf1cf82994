"""[generator]."""

import pytest

from sfumato_chassis.config import ConfigError
from sfumato_generator.config import GeneratorConfig


@pytest.mark.parametrize("setting", [{"precision": "fp8"}, {"max_resident_models": 0}])
def test_values_that_cannot_be_used(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        GeneratorConfig(**setting)
