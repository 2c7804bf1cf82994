import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato_diffusion.conditioning.cache import (
    ConditioningCache,
    Explanation,
    Miss,
    NonFiniteConditioningError,
    obtain,
)
from sfumato_diffusion.conditioning.flight_lock import FlightLock
from sfumato_diffusion.conditioning.keys import EncoderIdentity, LatentKey, TextKey, caption_digest
from sfumato_diffusion.safetensors_file import read_safetensors, write_safetensors
from sfumato_diffusion.safetensors_header import ADAPTER_LIMITS, read_header

ENCODER = EncoderIdentity(component="vae", source="org/m", revision="rev-1", precision="fp32")
LATENT_KEY = LatentKey(
    family="f", vae=ENCODER, image_digest="i", oriented_width=64, oriented_height=64,
    resized_width=64, resized_height=64, crop_left=0, crop_top=0, flip=False, target_height=64,
    target_width=64, background=(255, 255, 255), reader_version=1, cache_format_version=1,
    torch="2", diffusers="0", device_class="cpu",
)  # fmt: skip
TEXT_KEY = TextKey(
    family="f", encoders=(ENCODER,), prompt_length=512, prompt_template_version=1,
    caption_digest=caption_digest("a cat"), cache_format_version=1, torch="2",
    transformers="5", diffusers="0", device_class="cpu",
)  # fmt: skip
ENTRY = (torch.arange(12.0).reshape(3, 4), None, torch.tensor([1.0, 2.0], dtype=torch.bfloat16))


def _other(value: Any) -> Any:
    if isinstance(value, EncoderIdentity):
        return dataclasses.replace(value, revision="rev-2")
    if isinstance(value, tuple):
        return (*value, value[0])
    return value + 1 if isinstance(value, int) else f"{value}'"


@pytest.fixture
def cache(tmp_path: Path) -> ConditioningCache:
    return ConditioningCache(tmp_path)


def test_none_slots_and_dtypes_round_trip(cache: ConditioningCache) -> None:
    assert cache.read(TEXT_KEY) == Miss(reason="absent")
    cache.write(TEXT_KEY, ENTRY)
    found = cache.read(TEXT_KEY)
    assert not isinstance(found, Miss)
    assert found[1] is None
    for index in (0, 2):
        assert found[index].dtype == ENTRY[index].dtype
        assert torch.equal(found[index], ENTRY[index])


@pytest.mark.parametrize("key", [LATENT_KEY, TEXT_KEY], ids=["latents", "text"])
def test_every_field_of_a_key_counts_and_is_explained(
    key: LatentKey | TextKey, cache: ConditioningCache
) -> None:
    cache.write(key, ENTRY)
    assert cache.explain(key) == Explanation(hit=True)
    for field in dataclasses.fields(key):
        changed = dataclasses.replace(key, **{field.name: _other(getattr(key, field.name))})
        assert cache.read(changed) == Miss(reason="absent"), field.name
        explanation = cache.explain(changed)
        assert (explanation.hit, explanation.differing_field) == (False, field.name)


@pytest.mark.parametrize("field", ["component", "source", "revision", "precision"])
def test_every_field_of_an_encoder_counts(field: str, cache: ConditioningCache) -> None:
    cache.write(LATENT_KEY, ENTRY)
    encoder = dataclasses.replace(ENCODER, **{field: "other"})
    changed = dataclasses.replace(LATENT_KEY, vae=encoder)
    assert cache.explain(changed).differing_field == "vae"


def test_the_nearest_entry_explains(cache: ConditioningCache) -> None:
    cache.write(dataclasses.replace(TEXT_KEY, torch="1", caption_digest="far"), ENTRY)
    assert cache.explain(TEXT_KEY).differing_field == "caption_digest"
    cache.write(dataclasses.replace(TEXT_KEY, torch="1"), ENTRY)
    assert cache.explain(TEXT_KEY).differing_field == "torch"


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[read_header(path, ADAPTER_LIMITS).data_start] ^= 1
    path.write_bytes(data)


def _fill_with_nan(path: Path) -> None:
    tensors, metadata = read_safetensors(path, ADAPTER_LIMITS)
    spoiled = {name: torch.full_like(tensor, torch.nan) for name, tensor in tensors.items()}
    write_safetensors(path, spoiled, metadata)


def _swap_the_record(path: Path) -> None:
    tensors, metadata = read_safetensors(path, ADAPTER_LIMITS)
    write_safetensors(path, tensors, {**metadata, "key": LATENT_KEY.canonical()})


def _make_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_truncate, "unreadable"),
        (_make_a_directory, "unreadable"),
        (_flip_a_bit, "checksum"),
        (_fill_with_nan, "checksum"),
        (_swap_the_record, "other_key"),
    ],
)
def test_damage_is_a_logged_miss(
    damage: Any, reason: str, cache: ConditioningCache, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write(TEXT_KEY, ENTRY)
    damage(cache.path(TEXT_KEY))
    with caplog.at_level(logging.WARNING):
        assert cache.read(TEXT_KEY) == Miss(reason=reason)
    assert caplog.records
    assert cache.explain(TEXT_KEY).reason == reason


def test_nan_with_a_matching_checksum_is_not_used_either(
    cache: ConditioningCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled = (torch.tensor([torch.nan]),)
    with pytest.raises(NonFiniteConditioningError):
        cache.write(TEXT_KEY, spoiled)
    with monkeypatch.context() as patch:
        patch.setattr("sfumato_diffusion.conditioning.cache.first_non_finite", lambda _: None)
        cache.write(TEXT_KEY, spoiled)
    assert cache.read(TEXT_KEY) == Miss(reason="not_finite")


def test_two_at_once_encode_an_item_once(cache: ConditioningCache) -> None:
    encoded, started = [], threading.Event()
    release = threading.Event()

    def slow() -> Any:
        started.set()
        assert release.wait(20)
        encoded.append("first")
        return ENTRY

    def second() -> Any:
        encoded.append("second")
        return ENTRY

    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(obtain(cache, TEXT_KEY, slow, wait=lambda: None))
    )
    thread.start()
    assert started.wait(20)
    results.append(obtain(cache, TEXT_KEY, second, wait=release.set))
    thread.join()
    assert encoded == ["first"]
    assert all(torch.equal(result[0], ENTRY[0]) for result in results)
    assert not list(cache.path(TEXT_KEY).parent.glob("*.lock"))


def test_a_dead_holders_lock_is_taken_over_and_a_live_ones_is_not(tmp_path: Path) -> None:
    path = tmp_path / "item.lock"
    path.write_text("a holder that died")
    now = [0.0]
    lock = FlightLock(path, stale_seconds=10, clock=lambda: now[0])
    for seconds, expected in [(0.0, False), (9.0, False), (11.0, True)]:
        now[0] = seconds
        with lock.attempt() as held:
            assert held is expected
    path.write_text("a holder that lives")
    for beat in range(5):
        now[0] += 9.0
        path.touch()
        with lock.attempt() as held:
            assert held is False, beat


def test_the_holder_keeps_its_lock_fresh(tmp_path: Path) -> None:
    path = tmp_path / "item.lock"
    lock = FlightLock(path, heartbeat_seconds=0.01)
    with lock.attempt() as held:
        assert held
        first = path.stat().st_mtime_ns
        waited = threading.Event()
        for _ in range(500):
            if path.stat().st_mtime_ns > first:
                waited.set()
                break
            threading.Event().wait(0.01)
        assert waited.is_set()
    assert not path.exists()
