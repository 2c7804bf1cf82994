import numpy as np
import pytest
from PIL import Image

from sfumato_imaging.contact_sheet import contact_sheet

RED, BLUE = (255, 0, 0), (0, 0, 255)


def colour_count(sheet: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(sheet) == colour).all(axis=-1).sum())


def test_every_image_is_on_the_sheet_once() -> None:
    red, blue = Image.new("RGB", (64, 64), RED), Image.new("RGB", (200, 100), BLUE)
    sheet = contact_sheet([[red, blue], [None, red]], cell_side=64)
    assert colour_count(sheet, RED) == 2 * 64 * 64
    assert colour_count(sheet, BLUE) == 64 * 32
    assert colour_count(sheet, (224, 224, 224)) == 64 * 64


def test_small_images_grow_by_whole_factors() -> None:
    tiny = Image.new("RGB", (10, 10), RED)
    tiny.putpixel((0, 0), BLUE)
    sheet = contact_sheet([[tiny]], cell_side=64)
    assert colour_count(sheet, BLUE) == 6 * 6


def test_labels_are_drawn_beside_and_above() -> None:
    red = Image.new("RGB", (64, 64), RED)
    plain = contact_sheet([[red]], cell_side=64)
    labelled = contact_sheet(
        [[red]],
        row_labels=["a red square, again and again"],
        column_labels=["step 10"],
        cell_side=64,
    )
    assert labelled.width > plain.width
    assert labelled.height > plain.height
    dark = (np.asarray(labelled) < 100).all(axis=-1)
    assert dark[:18].any()
    assert dark[18:, :160].any()
    assert colour_count(labelled, RED) == 64 * 64


def test_irregular_grids_are_refused() -> None:
    red = Image.new("RGB", (4, 4), RED)
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet([])
    with pytest.raises(ValueError, match="one length"):
        contact_sheet([[red], [red, red]])
    with pytest.raises(ValueError, match="labels"):
        contact_sheet([[red]], row_labels=["a", "b"])
