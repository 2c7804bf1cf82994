"""The process that decodes: what kills it, and that the next image does not notice."""

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from PIL import Image

from sfumato_datasets.verifier import ImageRefusedError, ImageVerifier, VerifierStartError


def png(width: int = 40, height: int = 80, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, (width, height)).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def bmp_larger_than_a_pipe() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (1200, 1000)).save(buffer, format="BMP")
    return buffer.getvalue()


@pytest.fixture
def verifier() -> Iterator[ImageVerifier]:
    with ImageVerifier() as verifier:
        yield verifier


def process_id(verifier: ImageVerifier) -> int:
    assert verifier._process is not None
    return verifier._process.pid


def test_one_process_for_many_images(verifier: ImageVerifier) -> None:
    facts = verifier.verify(png()).facts
    assert (facts.width, facts.height, facts.media_type) == (40, 80, "image/png")
    first = process_id(verifier)
    animated = io.BytesIO()
    frames = [Image.new("L", (8, 8), level) for level in (0, 255)]
    frames[0].save(animated, format="GIF", save_all=True, append_images=frames[1:])
    assert [note.reason for note in verifier.verify(animated.getvalue()).facts.notes] == [
        "FIRST_FRAME_USED"
    ]
    with pytest.raises(ImageRefusedError) as refusal:
        verifier.verify(b"not an image")
    assert refusal.value.reason == "NOT_AN_IMAGE"
    verifier.verify(png(600, 600))
    assert process_id(verifier) == first


def test_what_needs_more_memory_than_allowed_is_refused_and_the_next_goes_on() -> None:
    with ImageVerifier(memory_limit_bytes=400 << 20) as verifier:
        with pytest.raises(ImageRefusedError) as refusal:
            verifier.verify(png(9000, 9000))
        assert refusal.value.reason in ("IMAGE_TOO_LARGE", "IMAGE_DECODER_DIED")
        assert verifier.verify(png()).facts.width == 40


def test_the_largest_accepted_image_fits_the_default_limit(verifier: ImageVerifier) -> None:
    assert verifier.verify(png(9459, 9459, "LA")).facts.width == 9459


def test_a_death_while_idle_goes_unnoticed(verifier: ImageVerifier) -> None:
    verifier.verify(png())
    first = process_id(verifier)
    os.kill(first, signal.SIGKILL)
    descriptor = os.pidfd_open(first)
    select.select([descriptor], [], [])
    os.close(descriptor)
    assert verifier.verify(png()).facts.width == 40
    assert process_id(verifier) != first


def test_a_death_over_an_image_refuses_that_image() -> None:
    victims: list[int] = []

    def killing_clock() -> float:
        """The verifier reads it once it has found its process alive."""
        if victims:
            os.kill(victims.pop(), signal.SIGKILL)
        return time.monotonic()

    with ImageVerifier(monotonic=killing_clock) as verifier:
        for data in (png(), bmp_larger_than_a_pipe()):
            verifier.verify(data)
            victims.append(process_id(verifier))
            with pytest.raises(ImageRefusedError) as refusal:
                verifier.verify(data)
            assert refusal.value.reason == "IMAGE_DECODER_DIED"
        assert verifier.verify(png()).facts.width == 40


@pytest.mark.parametrize("data", [png(), bmp_larger_than_a_pipe()])
def test_taking_too_long_refuses_the_image(data: bytes) -> None:
    with ImageVerifier(timeout_seconds=0.5) as verifier:
        verifier.verify(png())
        os.kill(process_id(verifier), signal.SIGSTOP)
        with pytest.raises(ImageRefusedError) as refusal:
            verifier.verify(data)
        assert refusal.value.reason == "IMAGE_DECODE_TIMEOUT"
        assert verifier.verify(png()).facts.width == 40


def test_a_process_that_cannot_start_blames_no_image() -> None:
    with ImageVerifier(memory_limit_bytes=1 << 20) as verifier, pytest.raises(VerifierStartError):
        verifier.verify(png())


def test_it_ends_with_the_process_that_started_it() -> None:
    script = (
        "import os\n"
        "from sfumato_datasets.verifier import ImageVerifier\n"
        "verifier = ImageVerifier()\n"
        "print(verifier._running().pid, flush=True)\n"
        "input()\n"
        "os._exit(0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        descriptor = os.pidfd_open(int(parent.stdout.readline()))
        parent.communicate(b"\n")
    ended, _, _ = select.select([descriptor], [], [], 20)
    os.close(descriptor)
    assert ended
