"""Small pictures, each of its own colour, with captions beside them."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image


def picture(index: int, side: int = 8) -> bytes:
    """A PNG of one colour, which `index` decides."""
    colour = (index * 37 % 256, index * 91 % 256, index % 256)
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def write_pictures(folder: Path, count: int, *, first: int = 0) -> Path:
    """Writes `count` pictures and their sidecars; answers the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(first, first + count):
        (folder / f"picture_{index:04d}.png").write_bytes(picture(index))
        (folder / f"picture_{index:04d}.txt").write_text(f"picture number {index}")
    return folder
