"""Verifies images in a process of their own, with a memory and a time limit.

A picture that expands to gigabytes, or crashes a decoder, ends that process and is refused; the
service and the next picture go on.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from types import TracebackType
from typing import IO, Any, ClassVar, Final, Protocol, Self

from sfumato_datasets.images import PREVIEWS_MEDIA_TYPE
from sfumato_datasets.reader_environment import reader_environment
from sfumato_imaging.facts import (
    MAX_THUMBNAIL_BYTES,
    THUMBNAIL_SIDES,
    ImageFacts,
    ImageNote,
    Thumbnail,
)

DEFAULT_MEMORY_LIMIT_BYTES: Final = 3 << 30
"""Address space of the process: enough for the largest accepted image in any mode."""
DEFAULT_TIMEOUT_SECONDS: Final = 60.0
START_TIMEOUT_SECONDS: Final = 60.0

LENGTH_BYTES: Final = 8
"""Size of the big-endian length in front of each image sent to the process."""
READY: Final = {"ready": True}
"""Its first line."""

_LARGEST_REPLY_BYTES: Final = 1 << 16


class ImageRefusedError(Exception):
    """The image was refused.

    `reason` is that of an `sfumato_imaging` error, or IMAGE_DECODER_DIED when the image took the
    process down, or IMAGE_DECODE_TIMEOUT when it took too long.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class VerifierStartError(Exception):
    """The process does not start; no image is to blame."""

    reason: ClassVar[str] = "WORKER_DIED"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifiedImage:
    """What is known of a good image.

    Attributes:
        perceptual_hash: 64 bits, unsigned.
        previews: One of each of THUMBNAIL_SIDES, the smallest first.
    """

    facts: ImageFacts
    perceptual_hash: int
    previews: tuple[Thumbnail, ...]


class Verifier(Protocol):
    """What an import needs of it."""

    def verify(self, data: bytes) -> VerifiedImage:
        """Decode an image in full.

        Raises:
            ImageRefusedError: it is no good.
        """


class ImageVerifier:
    """Verifies one image at a time; not for use by two threads at once. Close it after use.

    Args:
        memory_limit_bytes: address space of the process.
        timeout_seconds: for one image.
        monotonic: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        *,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._memory_limit_bytes = memory_limit_bytes
        self._timeout_seconds = timeout_seconds
        self._monotonic = monotonic
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def verify(self, data: bytes) -> VerifiedImage:
        """Decode an image in full, starting the process where none runs.

        Raises:
            ImageRefusedError: it is no good.
            VerifierStartError: the process cannot be started.
        """
        process = self._running()
        deadline = self._monotonic() + self._timeout_seconds
        try:
            self._send(process, len(data).to_bytes(LENGTH_BYTES, "big"), deadline)
            self._send(process, data, deadline)
            line, rest = self._line(process, deadline)
            announced = _verdict(line)
            if isinstance(announced, _Announced):
                previews = self._bytes(process, rest, announced.size_bytes, deadline)
                return announced.with_previews(previews)
        except TimeoutError as error:
            self.close()
            message = f"decoding takes longer than {self._timeout_seconds:g} s"
            raise ImageRefusedError("IMAGE_DECODE_TIMEOUT", message) from error
        except (EOFError, BrokenPipeError) as error:
            self.close()
            message = "decoding ended the process that did it"
            raise ImageRefusedError("IMAGE_DECODER_DIED", message) from error
        raise announced

    def interrupt(self) -> None:
        """End the process while another thread waits for it, which is told that it died."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the process, if one runs."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with process:
                process.wait()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._process is None:
            self._process = self._start()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sfumato_datasets.verifier_process"]
        process = subprocess.Popen(
            [*command, str(self._memory_limit_bytes)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # glibc keeps the pages of one image for the next; to get them anew takes longer than to decode.
            env=reader_environment(
                MALLOC_MMAP_THRESHOLD_=str(32 << 20), MALLOC_TRIM_THRESHOLD_=str(256 << 20)
            ),
            start_new_session=True,
        )
        self._process = process
        os.set_blocking(_descriptor(process.stdin), False)
        try:
            if self._line(process, self._monotonic() + START_TIMEOUT_SECONDS) != (READY, b""):
                raise EOFError
        except (TimeoutError, EOFError) as error:
            self.close()
            raise VerifierStartError("the image verifier does not start") from error
        return process

    def _send(self, process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
        descriptor = _descriptor(process.stdin)
        unsent = memoryview(data)
        while unsent:
            self._wait(descriptor, select.POLLOUT, deadline)
            unsent = unsent[os.write(descriptor, unsent) :]

    def _line(
        self, process: subprocess.Popen[bytes], deadline: float
    ) -> tuple[dict[str, Any], bytes]:
        """The next line that the process says, and what it has said after it."""
        said = b""
        while b"\n" not in said:
            if len(said) > _LARGEST_REPLY_BYTES:
                raise EOFError
            said += self._part(process, deadline)
        line, _, rest = said.partition(b"\n")
        try:
            document: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise EOFError from error
        return document, rest

    def _bytes(
        self, process: subprocess.Popen[bytes], said: bytes, length: int, deadline: float
    ) -> bytes:
        """So many bytes that the process says, of which `said` are here already."""
        parts, missing = [said], length - len(said)
        while missing > 0:
            parts.append(self._part(process, deadline))
            missing -= len(parts[-1])
        if missing < 0:
            raise EOFError
        return b"".join(parts)

    def _part(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        descriptor = _descriptor(process.stdout)
        self._wait(descriptor, select.POLLIN, deadline)
        part = os.read(descriptor, _LARGEST_REPLY_BYTES)
        if not part:
            raise EOFError
        return part

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        remaining_seconds = max(0.0, deadline - self._monotonic())
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(remaining_seconds * 1000):
            raise TimeoutError


@dataclass(frozen=True, kw_only=True, slots=True)
class _Announced:
    """What a process says of a good image before the bytes of its previews."""

    facts: ImageFacts
    perceptual_hash: int
    # Of each preview: bytes, width and height.
    previews: tuple[tuple[int, int, int], ...]

    @property
    def size_bytes(self) -> int:
        return sum(length for length, _, _ in self.previews)

    def with_previews(self, data: bytes) -> VerifiedImage:
        starts = accumulate((length for length, _, _ in self.previews), initial=0)
        return VerifiedImage(
            facts=self.facts,
            perceptual_hash=self.perceptual_hash,
            previews=tuple(
                Thumbnail(
                    data=data[start : start + length],
                    media_type=PREVIEWS_MEDIA_TYPE,
                    width=width,
                    height=height,
                )
                for start, (length, width, height) in zip(starts, self.previews, strict=False)
            ),
        )


def _verdict(reply: dict[str, Any]) -> _Announced | ImageRefusedError:
    """Raises EOFError where the reply is none: then the process is not what was started."""
    try:
        if "facts" not in reply:
            return ImageRefusedError(reply["reason"], reply["message"])
        facts = reply["facts"]
        notes = tuple(ImageNote(**note) for note in facts["notes"])
        announced = _Announced(
            facts=ImageFacts(**{**facts, "notes": notes}),
            perceptual_hash=int(reply["perceptual_hash"]),
            previews=tuple(
                (int(each["length"]), int(each["width"]), int(each["height"]))
                for each in reply["previews"]
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise EOFError from error
    lengths = [length for length, _, _ in announced.previews]
    if (
        len(lengths) != len(THUMBNAIL_SIDES)
        or not all(0 < length <= MAX_THUMBNAIL_BYTES for length in lengths)
        or not 0 <= announced.perceptual_hash < 1 << 64
    ):
        raise EOFError
    return announced


def _descriptor(pipe: IO[bytes] | None) -> int:
    if pipe is None:
        raise EOFError
    return pipe.fileno()
