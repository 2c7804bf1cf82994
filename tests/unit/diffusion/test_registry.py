import subprocess
import sys

import pytest

from sfumato_diffusion.families.info import UnsupportedPrecisionError
from sfumato_diffusion.families.registry import (
    UnknownFamilyError,
    family_info,
    list_families,
    load_family,
)


def test_listing_families_imports_no_torch() -> None:
    script = (
        "import sys; from sfumato_diffusion.families.registry import list_families; "
        "from sfumato_diffusion.families.identify import identify_family; "
        "import sfumato_diffusion.source_revision, sfumato_diffusion.model_files; "
        "import sfumato_trainer.settings, sfumato_trainer.events; "
        "print(len(list_families())); print('torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert output.stdout.split() == [str(len(list_families())), "False"], output.stderr


def test_every_family_is_complete() -> None:
    names = [info.name for info in list_families()]
    assert names == sorted(names)
    assert {"flux.1", "z-image"} <= set(names)
    for info in list_families():
        assert load_family(info.name).info is info
        assert info.training_base in {base.repository for base in info.bases}


def test_published_values() -> None:
    z_image, flux = family_info("z-image"), family_info("flux.1")
    assert [(base.steps, base.guidance.default) for base in z_image.bases] == [(9, 0.0), (20, 4.0)]
    assert [(b.steps, b.guidance.default) for b in flux.bases] == [(4, 0.0), (28, 3.5), (28, 4.5)]
    assert (flux.training.learning_rate_scheduler, flux.training.warmup_steps) == (
        "constant_with_warmup",
        20,
    )
    assert (z_image.training.resolution, z_image.training.rank) == (768, 16)
    assert z_image.base("tongyi-mai/z-image-turbo") is z_image.bases[0]
    assert z_image.base("/models/mine").repository == z_image.training_base


def test_unknown_family_is_refused_with_the_list() -> None:
    with pytest.raises(UnknownFamilyError, match=r"flux\.1, z-image"):
        load_family("sdxl-classic")


def test_z_image_refuses_fp16_with_the_reason() -> None:
    with pytest.raises(UnsupportedPrecisionError, match="overflow"):
        family_info("z-image").check_precision("fp16")
    family_info("z-image").check_precision("bf16")
