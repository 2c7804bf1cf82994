import json
from pathlib import Path

import pytest

from sfumato_diffusion.families.identify import UnidentifiedModelError, identify_family


@pytest.mark.parametrize(
    ("reference", "family"),
    [
        ("black-forest-labs/FLUX.1-dev", "flux.1"),
        ("Tongyi-MAI/Z-Image-Turbo", "z-image"),
        ("someone/my_flux1_tune", "flux.1"),
        ("C:\\models\\z_image", "z-image"),
    ],
)
def test_a_name_is_a_whole_segment_of_the_id(reference: str, family: str) -> None:
    assert identify_family(reference).name == family


def test_explicit_name_wins() -> None:
    assert identify_family("Tongyi-MAI/Z-Image", explicit="flux1").name == "flux.1"


def test_a_directory_says_itself_what_it_is(tmp_path: Path) -> None:
    model = tmp_path / "flux.1"
    model.mkdir()
    (model / "model_index.json").write_text(json.dumps({"_class_name": "ZImagePipeline"}))
    assert identify_family(str(model)).name == "z-image"
    (model / "model_index.json").write_text(json.dumps({"_class_name": "OtherPipeline"}))
    with pytest.raises(UnidentifiedModelError) as refusal:
        identify_family(str(model))
    assert refusal.value.reason == "UNKNOWN_PIPELINE"
    assert identify_family(str(model), explicit="flux.1").name == "flux.1"


def test_a_directory_of_another_family_than_was_named(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text(json.dumps({"_class_name": "ZImagePipeline"}))
    assert identify_family(str(tmp_path), explicit="z_image").name == "z-image"
    with pytest.raises(UnidentifiedModelError, match=r"z-image, not flux\.1") as refusal:
        identify_family(str(tmp_path), explicit="flux.1")
    assert refusal.value.reason == "OTHER_FAMILY"


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("org/flux1on", "NOT_RECOGNISED"),
        ("black-forest-labs/FLUX.2-dev", "NOT_RECOGNISED"),
        ("org/some-model", "NOT_RECOGNISED"),
        ("black-forest-labs/FLUX.1-Kontext-dev", "NOT_TEXT_TO_IMAGE"),
        ("org/z-image-edit", "NOT_TEXT_TO_IMAGE"),
    ],
)
def test_refusals(reference: str, reason: str) -> None:
    with pytest.raises(UnidentifiedModelError) as refusal:
        identify_family(reference)
    assert refusal.value.reason == reason


def test_unknown_explicit_name_is_refused() -> None:
    with pytest.raises(UnidentifiedModelError, match=r"flux\.1"):
        identify_family("Tongyi-MAI/Z-Image", explicit="z-imagine")
