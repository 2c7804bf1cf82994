"""A labelled grid of images on one sheet."""

import textwrap
from collections.abc import Sequence
from typing import Final

from PIL import Image, ImageDraw, ImageFont

_PAPER: Final = (255, 255, 255)
_INK: Final = (32, 32, 32)
_EMPTY_CELL: Final = (224, 224, 224)
_GAP: Final = 8
_FONT_PIXELS: Final = 14
_LINE_PIXELS: Final = 18
_LABEL_COLUMN_PIXELS: Final = 160
_AVERAGE_LETTER_PIXELS: Final = 8


def contact_sheet(
    rows: Sequence[Sequence[Image.Image | None]],
    *,
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    cell_side: int = 128,
) -> Image.Image:
    """Lay images out in a grid on white.

    Args:
        rows: images row by row, all rows of one length; None leaves a grey cell.
        row_labels: one per row, or none at all; long ones are wrapped.
        column_labels: one per column, or none at all.
        cell_side: side of a square cell in pixels; images are fitted into it, keeping their
            aspect, and never enlarged by other than whole factors, so that pixels stay visible.

    Returns:
        Mode RGB. Save it with any Pillow encoder.

    Raises:
        ValueError: no image, rows of different lengths, or a wrong number of labels.
    """
    num_columns = _check_grid(rows, row_labels, column_labels)
    font = ImageFont.load_default(size=_FONT_PIXELS)
    column_lines = [_wrap(label, cell_side) for label in column_labels]
    left = _GAP + (_LABEL_COLUMN_PIXELS if row_labels else 0)
    top = _GAP + _LINE_PIXELS * max((len(lines) for lines in column_lines), default=0)
    pitch = cell_side + _GAP
    sheet = Image.new("RGB", (left + num_columns * pitch, top + len(rows) * pitch), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for column, lines in enumerate(column_lines):
        draw.multiline_text((left + column * pitch, _GAP // 2), "\n".join(lines), _INK, font)
    for row, label in enumerate(row_labels):
        lines = _wrap(label, _LABEL_COLUMN_PIXELS - _GAP)[: max(1, cell_side // _LINE_PIXELS)]
        draw.multiline_text((_GAP, top + row * pitch), "\n".join(lines), _INK, font)
    for row, images in enumerate(rows):
        for column, image in enumerate(images):
            _paste_cell(sheet, image, (left + column * pitch, top + row * pitch), cell_side)
    return sheet


def _check_grid(
    rows: Sequence[Sequence[Image.Image | None]],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
) -> int:
    num_columns = len(rows[0]) if rows else 0
    if num_columns == 0:
        raise ValueError("a contact sheet needs at least one image")
    if any(len(images) != num_columns for images in rows):
        raise ValueError("all rows of a contact sheet must be of one length")
    if len(row_labels) not in (0, len(rows)) or len(column_labels) not in (0, num_columns):
        raise ValueError("labels must be one per row and one per column, or none")
    return num_columns


def _wrap(label: str, width_pixels: int) -> list[str]:
    return textwrap.wrap(label, max(1, width_pixels // _AVERAGE_LETTER_PIXELS)) or [""]


def _paste_cell(
    sheet: Image.Image, image: Image.Image | None, corner: tuple[int, int], side: int
) -> None:
    left, top = corner
    if image is None:
        sheet.paste(_EMPTY_CELL, (left, top, left + side, top + side))
        return
    fitted = _fit(image.convert("RGB"), side)
    sheet.paste(fitted, (left + (side - fitted.width) // 2, top + (side - fitted.height) // 2))


def _fit(image: Image.Image, side: int) -> Image.Image:
    longest = max(image.size)
    if longest > side:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        return image
    factor = side // longest
    size = (image.width * factor, image.height * factor)
    return image.resize(size, Image.Resampling.NEAREST)
