"""Changes of captions and tags, and removals: what becomes of a manifest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, TypeAlias

from sfumato_datasets.captions import MAX_CAPTION_CHARACTERS, MAX_TAGS
from sfumato_datasets.library import EVERY_SAMPLE, SampleFilter
from sfumato_datasets.manifest import Manifest, Sample
from sfumato_datasets.notes import printable_name

EDIT_SOURCE: Final = "edit"
"""Where a caption that was edited came from."""

Action: TypeAlias = Callable[[Sample], Sample | None]
"""What a sample becomes; None where it is removed. Raises EditError."""


class EditError(Exception):
    """An edit cannot be done; `edit` counts from 0."""

    reason: ClassVar[str] = "FIELD_INVALID"

    def __init__(self, message: str, *, edit: int = 0) -> None:
        super().__init__(message)
        self.edit = edit


class SampleNotFoundError(Exception):
    """An edit names a sample that is not there."""

    reason: ClassVar[str] = "RESOURCE_NOT_FOUND"

    def __init__(self, file_name: str) -> None:
        super().__init__(file_name)
        self.file_name = file_name


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """What is done with which samples: those named, or else those that fit."""

    action: Action
    names: frozenset[str] | None = None
    fitting: SampleFilter = EVERY_SAMPLE

    def concerns(self, sample: Sample) -> bool:
        """Whether the sample is meant."""
        if self.names is not None:
            return sample.file_name in self.names
        return self.fitting.fits(sample)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edited:
    """A manifest after edits. `num_changed` counts samples that are different or gone."""

    manifest: Manifest
    num_changed: int


def apply_edits(manifest: Manifest, edits: Sequence[Edit]) -> Edited:
    """Does the edits one after the other.

    Raises:
        EditError: A caption would be too long, or a sample have too many tags.
        SampleNotFoundError: A sample is named that is not there, or not any more.
    """
    before = {sample.file_name: sample for sample in manifest.samples}
    after = dict(before)
    for index, edit in enumerate(edits):
        for name in sorted(edit.names or ()):
            if name not in after:
                raise SampleNotFoundError(name)
        for sample in [sample for sample in after.values() if edit.concerns(sample)]:
            try:
                changed = edit.action(sample)
            except EditError as error:
                message = f"{printable_name(sample.file_name)}: {error}"
                raise EditError(message, edit=index) from error
            if changed is None:
                del after[sample.file_name]
            else:
                after[sample.file_name] = changed
    num_changed = sum(1 for name, sample in before.items() if after.get(name) != sample)
    return Edited(manifest=Manifest.of(after.values()), num_changed=num_changed)


def set_caption(caption: str, variants: Sequence[str]) -> Action:
    """Gives the sample this caption; an empty one is a tombstone."""
    return lambda sample: _captioned(sample, caption, variants)


def replace_text(find: str, replacement: str) -> Action:
    """Replaces text in the caption and its variants."""

    def change(text: str) -> str:
        return text.replace(find, replacement)

    return lambda sample: _with_captions(sample, change)


def add_prefix(prefix: str) -> Action:
    """Puts text before the captions that are not empty."""
    return lambda sample: _with_captions(sample, lambda text: prefix + text if text else text)


def add_suffix(suffix: str) -> Action:
    """Puts text behind the captions that are not empty."""
    return lambda sample: _with_captions(sample, lambda text: text + suffix if text else text)


def set_tags(tags: Sequence[str]) -> Action:
    """Gives the sample these tags alone."""
    return lambda sample: _tagged(sample, tags)


def add_tags(tags: Sequence[str]) -> Action:
    """Adds tags behind those there are."""
    return lambda sample: _tagged(sample, [*sample.tags, *tags])


def remove_tags(tags: Sequence[str]) -> Action:
    """Takes tags away."""
    return lambda sample: _tagged(sample, [tag for tag in sample.tags if tag not in tags])


def remove(sample: Sample) -> None:
    """Takes the sample out."""
    del sample


def _with_captions(sample: Sample, change: Callable[[str], str]) -> Sample:
    captions = [change(text) for text in (sample.caption, *sample.caption_variants)]
    if captions == [sample.caption, *sample.caption_variants]:
        return sample
    return _captioned(sample, captions[0], captions[1:])


def _captioned(sample: Sample, caption: str, variants: Sequence[str]) -> Sample:
    first, *others = (_normalised(text) for text in (caption, *variants))
    changed = replace(
        sample, caption=first, caption_variants=tuple(text for text in others if text)
    )
    if changed == sample and sample.caption_source:
        return sample
    return replace(changed, caption_source=EDIT_SOURCE)


def _normalised(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").strip()
    if len(text) > MAX_CAPTION_CHARACTERS:
        raise EditError(
            f"its caption would have {len(text)} characters, more than {MAX_CAPTION_CHARACTERS}"
        )
    return text


def _tagged(sample: Sample, tags: Sequence[str]) -> Sample:
    distinct = tuple(dict.fromkeys(tags))
    if len(distinct) > MAX_TAGS:
        raise EditError(f"it would have {len(distinct)} tags, more than {MAX_TAGS}")
    return replace(sample, tags=distinct)
