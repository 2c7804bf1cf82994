import errno
import io
import json
from collections.abc import Iterator

import pytest
import structlog

from sfumato_chassis import unexpected_errors
from sfumato_chassis.errors import JobFailure, Reason
from sfumato_chassis.logging import configure_logging, get_logger

SECRET_PATH = "/srv/secret/file"
FAULTS = [
    (AttributeError(f"no attribute {SECRET_PATH}"), Reason.INTERNAL, "INTERNAL"),
    (OSError(errno.ENOSPC, "No space left", SECRET_PATH), Reason.DISK_FULL, "RESOURCE_EXHAUSTED"),
]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging(level="info", json_lines=True, stream=stream)
    monkeypatch.setattr(unexpected_errors, "log", get_logger("test"))
    yield stream
    structlog.reset_defaults()


@pytest.mark.parametrize(("error", "reason", "status"), FAULTS, ids=lambda fault: str(fault)[:20])
def test_the_log_has_what_the_caller_is_not_told(
    error: Exception, reason: Reason, status: str, lines: io.StringIO
) -> None:
    told = unexpected_errors.report(error, "import failed", method="CreateImport")
    assert (told.reason, told.status) == (reason, status)
    line = json.loads(lines.getvalue())
    assert line["error_id"] == told.error_id
    assert (line["event"], line["method"]) == ("import failed", "CreateImport")
    assert SECRET_PATH in line["exception"]
    for text in (told.message, *told.details.values()):
        assert SECRET_PATH not in text
        assert type(error).__name__ not in text


@pytest.mark.parametrize(("error", "reason", "status"), FAULTS, ids=lambda fault: str(fault)[:20])
def test_a_job_has_the_error_id_in_its_own_field(
    error: Exception, reason: Reason, status: str, lines: io.StringIO
) -> None:
    del status
    failure = JobFailure.of(unexpected_errors.report(error, "import failed"))
    assert failure.reason is reason
    assert failure.error_id == json.loads(lines.getvalue())["error_id"]
    assert not failure.details


def test_a_full_disk_says_when_to_try_again() -> None:
    told = unexpected_errors.report(OSError(errno.ENOSPC, "full"), "write")
    assert told.retry_after_seconds
