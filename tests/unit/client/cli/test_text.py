"""Small formats."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from sfumato.job.v1 import job_pb2
from sfumato_client.cli.text import clock_time, counted, file_size, moment, printable, state_name


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1_572_864, "1.5 MiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_file_size(size_bytes: int, text: str) -> None:
    assert file_size(size_bytes) == text


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (61, "1:01"), (3723, "1:02:03")])
def test_clock_time(seconds: int, text: str) -> None:
    assert clock_time(Duration(seconds=seconds)) == text


def test_moment_is_utc() -> None:
    assert moment(Timestamp(seconds=0, nanos=0)) == ""
    assert moment(Timestamp(seconds=86_400 + 1)) == "1970-01-02 00:00:01Z"


def test_printable_escapes_what_steers_a_terminal() -> None:
    assert printable("ü \x1b[31m\n\x07") == "ü \\x1b[31m\\n\\x07"


def test_state_name() -> None:
    assert state_name(job_pb2.JOB_STATE_RUNNING) == "running"


@pytest.mark.parametrize(("number", "text"), [(0, "0 images"), (1, "1 image"), (24, "24 images")])
def test_counts_agree_with_their_noun(number, text):
    assert counted(number, "image") == text
