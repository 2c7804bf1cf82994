"""Decodes images of strangers in a process that may die of it.

Started by `sfumato_datasets.verifier`: `python -m sfumato_datasets.verifier_process LIMIT_BYTES`.
Standard input carries requests, each an 8-byte big-endian length and that many bytes of image.
Standard output carries one JSON line per request, after a first line that says it is ready.
"""

import io
import json
import resource
import sys
from dataclasses import asdict
from typing import Any, BinaryIO, Final

from PIL import Image

from sfumato_datasets.verifier import LENGTH_BYTES, READY
from sfumato_imaging.errors import ImageError
from sfumato_imaging.reader import verify_image

_PROBE_SIDE: Final = 1024


def main() -> None:
    memory_limit_bytes = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    verify_image(_probe())
    _reply(sys.stdout.buffer, READY)
    while (data := _request(sys.stdin.buffer)) is not None:
        _reply(sys.stdout.buffer, _verdict(data))


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


def _verdict(data: bytes) -> dict[str, Any]:
    try:
        return {"facts": asdict(verify_image(data))}
    except ImageError as error:
        return {"reason": error.reason, "message": str(error)}


def _reply(stream: BinaryIO, document: dict[str, Any]) -> None:
    stream.write(json.dumps(document).encode("ascii") + b"\n")
    stream.flush()


if __name__ == "__main__":
    main()
