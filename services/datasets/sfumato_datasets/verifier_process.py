"""Decodes images of strangers in a process that may die of it.

Started by `sfumato_datasets.verifier`: `python -m sfumato_datasets.verifier_process LIMIT_BYTES`.
Standard input carries requests, each an 8-byte big-endian length and that many bytes of image.
Standard output carries one JSON line per request, after a first line that says it is ready. The line of
a good image gives the lengths of its previews, whose bytes follow it.
"""

import io
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, BinaryIO, Final

from PIL import Image

from sfumato_datasets.verifier import LENGTH_BYTES, READY
from sfumato_imaging.errors import ImageError, ImageTooLargeError
from sfumato_imaging.facts import Thumbnail
from sfumato_imaging.perceptual_hash import perceptual_hash
from sfumato_imaging.reader import read_verified
from sfumato_imaging.thumbnails import make_previews

_PROBE_SIDE: Final = 1024


def main() -> None:
    memory_limit_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _verdict(_probe())
    _reply(sys.stdout.buffer, READY, ())
    while (data := _request(sys.stdin.buffer)) is not None:
        _reply(sys.stdout.buffer, *_verdict(data))


def _probe() -> bytes:
    """An image that must be readable: a limit too low for it is no image's fault.

    Encoding it also loads Pillow's plugins before the first image of a stranger.
    """
    buffer = io.BytesIO()
    Image.new("RGB", (_PROBE_SIDE, _PROBE_SIDE)).save(buffer, format="PNG")
    return buffer.getvalue()


def _request(stream: BinaryIO) -> bytes | None:
    """The next image, or None when the service closed the pipe or died."""
    head = stream.read(LENGTH_BYTES)
    if len(head) < LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "big")
    data = stream.read(length)
    return data if len(data) == length else None


def _verdict(data: bytes) -> tuple[dict[str, Any], Sequence[Thumbnail]]:
    """What is said of an image, and its previews."""
    try:
        image, facts = read_verified(data)
        try:
            previews = make_previews(image)
            hashed = perceptual_hash(image)
        except MemoryError as error:
            raise ImageTooLargeError("its previews take too much memory") from error
    except ImageError as error:
        return {"reason": error.reason, "message": str(error)}, ()
    described = [
        {"length": len(preview.data), "width": preview.width, "height": preview.height}
        for preview in previews
    ]
    return {"facts": asdict(facts), "perceptual_hash": hashed, "previews": described}, previews


def _reply(stream: BinaryIO, document: dict[str, Any], previews: Sequence[Thumbnail]) -> None:
    stream.write(json.dumps(document).encode("ascii") + b"\n")
    stream.writelines(preview.data for preview in previews)
    stream.flush()


if __name__ == "__main__":
    main()
