"""Fill what is missing of a run's conditioning, one item at a time, encoders only if needed.

Items are never batched, so the bytes do not depend on a batch size.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sfumato_diffusion.conditioning.cache import ConditioningCache, Entry, Miss, obtain
from sfumato_diffusion.conditioning.keys import ConditioningKey
from sfumato_diffusion.conditioning.plan import (
    BACKGROUND,
    EncoderSource,
    ImageItem,
    latent_keys,
    text_key,
)
from sfumato_diffusion.conditioning.variants import VariantDraw
from sfumato_diffusion.families.contract import Family, LatentStatistics, PromptEmbedding
from sfumato_imaging.geometry import cover_crop
from sfumato_imaging.reader import read_image

OnItem = Callable[[int, int], None]
"""Called with (items ready, items in all); it may raise to end the fill between two items."""

_POLL_SECONDS = 0.05


@dataclass(kw_only=True, slots=True)
class ConditioningReport:
    """What a fill did. Misses are counted by (kind, reason), the rest by kind."""

    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[tuple[str, str]] = field(default_factory=Counter)
    encoder_calls: Counter[str] = field(default_factory=Counter)
    encoders_loaded: int = 0

    def num_misses(self, kind: str) -> int:
        """Misses of one kind, whatever the reason."""
        return sum(count for (missed, _), count in self.misses.items() if missed == kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditioning:
    """Everything a run trains on, in memory. `latents[i][v]` is variant v of picture i."""

    latents: tuple[tuple[LatentStatistics, ...], ...]
    prompts: Mapping[str, PromptEmbedding]
    report: ConditioningReport


def fill_conditioning(
    family: Family,
    source: EncoderSource,
    *,
    captions: Sequence[str],
    images: Sequence[ImageItem],
    target_size: tuple[int, int],
    cache: ConditioningCache | None,
    on_item: OnItem,
) -> Conditioning:
    """Read or encode every distinct caption and variant. `target_size` is (width, height).

    Without a cache, or with an unresolved source, all of it is encoded and nothing is kept on
    disk. Raises ImageError for a picture that cannot be read, OSError where the cache cannot be
    written, and what `on_item` raises.
    """
    report = ConditioningReport()
    keys_of_image = [latent_keys(source, image, target_size) for image in images]
    tasks = _Tasks(cache if source.cacheable else None, report, on_item)
    distinct = list(dict.fromkeys(captions))
    text_encoder = _TextEncoder(family, source, report)
    text_tasks: dict[ConditioningKey, Callable[[], Entry]] = {
        text_key(source, caption): _bind(text_encoder.encode, caption) for caption in distinct
    }
    vae_encoder = _VaeEncoder(family, source, report, target_size)
    latent_tasks: dict[ConditioningKey, Callable[[], Entry]] = {
        key: _bind(vae_encoder.encode, image, variant)
        for image, keys in zip(images, keys_of_image, strict=True)
        for key, variant in zip(keys, image.variants, strict=True)
    }
    tasks.total = len(text_tasks) + len(latent_tasks)
    texts = tasks.run(text_tasks)
    text_encoder.free()
    latents = tasks.run(latent_tasks)
    vae_encoder.free()
    return Conditioning(
        latents=tuple(tuple(_statistics(latents[key]) for key in keys) for keys in keys_of_image),
        prompts={caption: texts[text_key(source, caption)] for caption in distinct},
        report=report,
    )


class _Tasks:
    """Looks every key up first, then encodes the missing ones."""

    def __init__(
        self, cache: ConditioningCache | None, report: ConditioningReport, on_item: OnItem
    ) -> None:
        self._cache = cache
        self._report = report
        self._on_item = on_item
        self._done = 0
        self.total = 0

    def run(
        self, tasks: Mapping[ConditioningKey, Callable[[], Entry]]
    ) -> dict[ConditioningKey, Entry]:
        entries: dict[ConditioningKey, Entry] = {}
        for key in tasks:
            found = self._look_up(key)
            if isinstance(found, Miss):
                self._report.misses[key.kind, found.reason] += 1
            else:
                self._report.hits[key.kind] += 1
                entries[key] = found
                self._advance()
        for key, encode in tasks.items():
            if key not in entries:
                entries[key] = self._encode(key, encode)
                self._advance()
        return entries

    def _look_up(self, key: ConditioningKey) -> Entry | Miss:
        return Miss(reason="absent") if self._cache is None else self._cache.read(key)

    def _encode(self, key: ConditioningKey, encode: Callable[[], Entry]) -> Entry:
        if self._cache is None:
            return encode()
        return obtain(self._cache, key, encode, wait=self._wait)

    def _wait(self) -> None:
        self._on_item(self._done, self.total)
        time.sleep(_POLL_SECONDS)

    def _advance(self) -> None:
        self._done += 1
        self._on_item(self._done, self.total)


class _TextEncoder:
    """Loads the text encoders at the first caption that is missing."""

    def __init__(self, family: Family, source: EncoderSource, report: ConditioningReport) -> None:
        self._family = family
        self._source = source
        self._report = report
        self._loaded: Any = None

    def encode(self, caption: str) -> Entry:
        if self._loaded is None:
            self._loaded = self._family.load_text_encoders(
                self._source.directory, precision=self._source.text_precision
            ).to(self._source.device)
            self._report.encoders_loaded += len(self._source.family.text_encoder_components)
        self._report.encoder_calls["text"] += 1
        return self._family.encode_prompt(self._loaded, caption)

    def free(self) -> None:
        self._loaded = None
        gc.collect()


class _VaeEncoder:
    """Loads the VAE at the first variant that is missing."""

    def __init__(
        self,
        family: Family,
        source: EncoderSource,
        report: ConditioningReport,
        target_size: tuple[int, int],
    ) -> None:
        self._family = family
        self._source = source
        self._report = report
        self._target_size = target_size
        self._loaded: Any = None

    def encode(self, image: ImageItem, variant: VariantDraw) -> Entry:
        if self._loaded is None:
            self._loaded = self._family.load_vae(
                self._source.directory, precision=self._source.vae_precision
            ).to(self._source.device)
            self._report.encoders_loaded += 1
        picture, _ = cover_crop(
            read_image(image.path, background=BACKGROUND),
            target_size=self._target_size,
            crop=(variant.u_left, variant.u_top),
            flip=variant.flip,
        )
        self._report.encoder_calls["latents"] += 1
        statistics = self._family.encode_image(self._loaded, picture)
        return statistics.mean, statistics.std

    def free(self) -> None:
        self._loaded = None
        gc.collect()


def _bind(encode: Callable[..., Entry], *arguments: Any) -> Callable[[], Entry]:
    return lambda: encode(*arguments)


def _statistics(entry: Entry) -> LatentStatistics:
    mean, std = entry
    if mean is None:
        raise ValueError("a latents entry without a mean")
    return LatentStatistics(mean=mean, std=std)
