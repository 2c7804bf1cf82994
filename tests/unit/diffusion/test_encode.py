import hashlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from sfumato_diffusion.conditioning.cache import ConditioningCache
from sfumato_diffusion.conditioning.encode import Conditioning, fill_conditioning
from sfumato_diffusion.conditioning.plan import ImageItem, encoder_source
from sfumato_diffusion.conditioning.variants import draw_variants
from sfumato_diffusion.families.info import Precision
from sfumato_diffusion.families.registry import list_families, load_family
from sfumato_imaging.geometry import cover_crop
from sfumato_imaging.reader import read_image

FAMILIES = [info.name for info in list_families()]
ALL_WARM = {"text": 2, "latents": 3}


class Bench:
    """A cache, a model and one picture; each fill is as a run of its own would make it."""

    def __init__(self, family: str, model: Path, directory: Path) -> None:
        self.family = load_family(family)
        self.model = model
        self.cache = ConditioningCache(directory / "cache")
        self.pixels = Image.effect_noise((96, 80), 90).convert("RGB")
        self.captions = ["a red apple", ""]
        self.vae_precision: Precision = "fp32"
        self.text_precision: Precision = "fp32"
        self.side = 64
        self._directory = directory

    def image(self) -> ImageItem:
        buffer = io.BytesIO()
        self.pixels.save(buffer, "png")
        path = self._directory / "picture"
        path.write_bytes(buffer.getvalue())
        variants = draw_variants(
            seed=1, image_digest="fixed", count=3, center_crop=False, random_flip=True
        )
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        return ImageItem(path=path, digest=digest, variants=variants)

    def fill(self, on_item: Callable[[int, int], None] = lambda done, total: None) -> Conditioning:
        source = encoder_source(
            family=self.family.info,
            reference=str(self.model),
            revision="main",
            directory=self.model,
            cache_roots=[],
            vae_precision=self.vae_precision,
            text_precision=self.text_precision,
            device=torch.device("cpu"),
        )
        return fill_conditioning(
            self.family,
            source,
            captions=self.captions,
            images=[self.image()],
            target_size=(self.side, self.side),
            cache=self.cache,
            on_item=on_item,
        )


@pytest.fixture(params=FAMILIES)
def bench(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], tmp_path: Path
) -> Bench:
    model = tmp_path / "model"
    shutil.copytree(tiny_model(request.param), model)
    return Bench(request.param, model, tmp_path)


def test_warm_equals_cold_bit_for_bit_and_loads_nothing(bench: Bench) -> None:
    seen: list[tuple[int, int]] = []
    cold = bench.fill(lambda done, total: seen.append((done, total)))
    assert seen == [(done, 5) for done in range(1, 6)]
    num_encoders = len(bench.family.info.text_encoder_components) + 1
    assert cold.report.encoders_loaded == num_encoders
    assert cold.report.misses == {("text", "absent"): 2, ("latents", "absent"): 3}
    warm = bench.fill()
    assert warm.report.encoders_loaded == 0
    assert warm.report.hits == ALL_WARM
    assert not warm.report.misses
    assert not warm.report.encoder_calls
    for left, right in zip(cold.latents[0], warm.latents[0], strict=True):
        assert torch.equal(left.mean, right.mean)
        assert (left.std is None) is (bench.family.info.latents == "posterior_mode")
        assert left.std is None or torch.equal(left.std, right.std)
    for caption in bench.captions:
        pairs = zip(cold.prompts[caption], warm.prompts[caption], strict=True)
        assert all(torch.equal(left, right) for left, right in pairs)


def test_an_entry_is_what_the_encoder_answers_for_that_crop(bench: Bench) -> None:
    image = bench.image()
    vae = bench.family.load_vae(bench.model, precision="fp32")
    found = bench.fill().latents[0]
    for variant, statistics in zip(image.variants, found, strict=True):
        picture, _ = cover_crop(
            read_image(image.path),
            target_size=(64, 64),
            crop=(variant.u_left, variant.u_top),
            flip=variant.flip,
        )
        assert torch.equal(bench.family.encode_image(vae, picture).mean, statistics.mean)


def _change_pixel(bench: Bench) -> None:
    red, green, blue = bench.pixels.getpixel((0, 0))
    bench.pixels.putpixel((0, 0), (red ^ 1, green, blue))


def _change_caption_byte(bench: Bench) -> None:
    bench.captions[0] = "a red appla"


def _change_vae_byte(bench: Bench) -> None:
    path = bench.model / "vae" / "diffusion_pytorch_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _change_encoder_byte(bench: Bench) -> None:
    path = bench.model / "text_encoder" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)


def _change_vae_precision(bench: Bench) -> None:
    bench.vae_precision = "bf16"


def _change_text_precision(bench: Bench) -> None:
    bench.text_precision = "bf16"


def _change_resolution(bench: Bench) -> None:
    bench.side = 80


@pytest.mark.parametrize(
    ("change", "misses"),
    [
        (_change_pixel, {("latents", "absent"): 3}),
        (_change_caption_byte, {("text", "absent"): 1}),
        (_change_vae_byte, {("latents", "absent"): 3}),
        (_change_encoder_byte, {("text", "absent"): 2}),
        (_change_vae_precision, {("latents", "absent"): 3}),
        (_change_text_precision, {("text", "absent"): 2}),
        (_change_resolution, {("latents", "absent"): 3}),
    ],
)
def test_one_change_is_one_kind_of_miss(
    change: Callable[[Bench], None], misses: dict[tuple[str, str], int], bench: Bench
) -> None:
    bench.fill()
    change(bench)
    report = bench.fill().report
    assert report.misses == misses
    assert report.hits.total() == 5 - sum(misses.values())
    (kind, _), *_ = misses
    assert set(report.encoder_calls) == {kind}
    assert not bench.fill().report.misses


def test_a_damaged_entry_is_encoded_again_to_the_same_bits(bench: Bench) -> None:
    cold = bench.fill()
    for kind in ("text", "latents"):
        path = min((bench.cache.path_of_kind(kind)).glob("*.safetensors"))
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    again = bench.fill()
    assert again.report.misses == {("text", "checksum"): 1, ("latents", "checksum"): 1}
    for left, right in zip(cold.latents[0], again.latents[0], strict=True):
        assert torch.equal(left.mean, right.mean)
    assert bench.fill().report.hits == ALL_WARM


def test_ending_between_two_items_keeps_what_is_done(bench: Bench) -> None:
    class GivenUpError(Exception):
        pass

    def give_up(done: int, total: int) -> None:
        if done == 2:
            raise GivenUpError

    with pytest.raises(GivenUpError):
        bench.fill(give_up)
    assert bench.fill().report.hits == {"text": 2}


def test_an_unresolved_source_is_never_kept_on_disk(bench: Bench) -> None:
    source = encoder_source(
        family=bench.family.info,
        reference="org/elsewhere",
        revision="main",
        directory=bench.model,
        cache_roots=[],
        vae_precision="fp32",
        text_precision="fp32",
        device=torch.device("cpu"),
    )
    assert not source.cacheable
    filled = fill_conditioning(
        bench.family,
        source,
        captions=["a"],
        images=[],
        target_size=(64, 64),
        cache=bench.cache,
        on_item=lambda done, total: None,
    )
    assert "a" in filled.prompts
    assert not list(bench.cache.path_of_kind("text").glob("*"))
