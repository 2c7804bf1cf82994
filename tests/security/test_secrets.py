import io
import json
from collections.abc import Iterator

import pytest
import structlog

from sfumato_chassis.logging import SECRET_KEYS, configure_logging, get_logger

CANARY = "canary-5f1b2c"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("json_lines", [True, False])
@pytest.mark.parametrize("key", sorted(SECRET_KEYS))
def test_secrets_never_reach_the_log(json_lines: bool, key: str) -> None:
    stream = io.StringIO()
    configure_logging(level="debug", json_lines=json_lines, stream=stream)
    get_logger("tests").info("call", **{key: CANARY}, kept="visible")
    line = stream.getvalue()
    assert CANARY not in line
    assert "visible" in line
    if json_lines:
        assert json.loads(line)[key] == "[redacted]"
