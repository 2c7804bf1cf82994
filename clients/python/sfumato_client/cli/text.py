"""Small formats of the command line."""

from __future__ import annotations

import math

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from sfumato.job.v1 import job_pb2


def printable(text: str) -> str:
    """The text with control characters escaped: what a server sends must not steer a terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def counted(number: int, noun: str) -> str:
    """A number of things, e.g. `1 image` or `24 images`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def file_size(size_bytes: int) -> str:
    """A size for people, e.g. `1.5 MiB`."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log2(size_bytes) / 10), len(units) - 1) if size_bytes > 0 else 0
    if power == 0:
        return f"{size_bytes} B"
    return f"{size_bytes / 1024**power:.1f} {units[power]}"


def clock_time(duration: Duration) -> str:
    """A duration as hours, minutes and seconds, e.g. `1:02:03`."""
    minutes, seconds = divmod(max(0, round(duration.ToNanoseconds() / 1e9)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def moment(timestamp: Timestamp) -> str:
    """A time in UTC, to the second; empty if it is not set."""
    if timestamp.ToNanoseconds() == 0:
        return ""
    return timestamp.ToDatetime().isoformat(" ", "seconds") + "Z"


def state_name(state: job_pb2.JobState.ValueType) -> str:
    """`running` for JOB_STATE_RUNNING."""
    return job_pb2.JobState.Name(state).removeprefix("JOB_STATE_").lower()
