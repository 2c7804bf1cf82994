import dataclasses

import pytest

from sfumato_chassis.blobs import digest_of
from sfumato_datasets import editing
from sfumato_datasets.captions import MAX_CAPTION_CHARACTERS, MAX_TAGS
from sfumato_datasets.editing import (
    EDIT_SOURCE,
    Action,
    Edit,
    EditError,
    SampleNotFoundError,
    apply_edits,
)
from sfumato_datasets.library import SampleFilter
from sfumato_datasets.manifest import Manifest, Sample

BIRD = Sample(
    file_name="bird.png",
    image_digest=digest_of(b"bird"),
    size_bytes=4,
    media_type="image/png",
    width=8,
    height=8,
    caption="a bird in a tree",
    caption_variants=("a tree with a bird",),
    caption_source="sidecar.txt",
    tags=("animal", "tree"),
)
CAT = dataclasses.replace(
    BIRD, file_name="cat.png", caption="a cat", caption_variants=(), tags=("animal",)
)
BARE = dataclasses.replace(CAT, file_name="bare.png", caption="", caption_source="", tags=())
MANIFEST = Manifest.of([BIRD, CAT, BARE])


def after(*edits: Edit) -> dict[str, Sample]:
    return {sample.file_name: sample for sample in apply_edits(MANIFEST, edits).manifest.samples}


def edited(sample: Sample, **changes: object) -> Sample:
    return dataclasses.replace(sample, caption_source=EDIT_SOURCE, **changes)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (editing.set_caption("a jay", []), edited(BIRD, caption="a jay", caption_variants=())),
        (
            editing.set_caption(" a\r\njay ", ["x", " "]),
            edited(BIRD, caption="a\njay", caption_variants=("x",)),
        ),
        (editing.set_caption("", []), edited(BIRD, caption="", caption_variants=())),
        (
            editing.replace_text("tree", "bush"),
            edited(BIRD, caption="a bird in a bush", caption_variants=("a bush with a bird",)),
        ),
        (editing.replace_text("Tree", "bush"), BIRD),
        (
            editing.add_prefix("photo, "),
            edited(
                BIRD,
                caption="photo, a bird in a tree",
                caption_variants=("photo, a tree with a bird",),
            ),
        ),
        (
            editing.add_suffix(", sks"),
            edited(
                BIRD, caption="a bird in a tree, sks", caption_variants=("a tree with a bird, sks",)
            ),
        ),
        (editing.set_tags(["x", "y", "x"]), dataclasses.replace(BIRD, tags=("x", "y"))),
        (editing.add_tags(["x", "tree"]), dataclasses.replace(BIRD, tags=("animal", "tree", "x"))),
        (editing.remove_tags(["tree", "z"]), dataclasses.replace(BIRD, tags=("animal",))),
    ],
)
def test_each_action_changes_what_it_names_and_nothing_else(
    action: Action, expected: Sample
) -> None:
    edit = Edit(action=action, names=frozenset(["bird.png"]))
    assert after(edit) == {"bird.png": expected, "cat.png": CAT, "bare.png": BARE}
    assert apply_edits(MANIFEST, [edit]).num_changed == int(expected != BIRD)


def test_prefix_and_suffix_leave_a_missing_caption_missing() -> None:
    samples = after(Edit(action=editing.add_prefix("x ")), Edit(action=editing.add_suffix(" y")))
    assert samples["bare.png"] == BARE
    assert samples["cat.png"].caption == "x a cat y"


def test_an_empty_caption_is_a_tombstone() -> None:
    nothing = editing.set_caption("", [])
    samples = after(Edit(action=nothing, fitting=SampleFilter(missing_caption=True)))
    assert samples["bare.png"] == edited(BARE)


def test_removed_samples_are_counted_and_gone() -> None:
    outcome = apply_edits(
        MANIFEST, [Edit(action=editing.remove, fitting=SampleFilter(tag="animal"))]
    )
    assert outcome.manifest.samples == (BARE,)
    assert outcome.num_changed == 2


def test_edits_are_done_one_after_the_other_and_a_sample_counts_once() -> None:
    edits = [
        Edit(action=editing.replace_text("cat", "dog"), fitting=SampleFilter(tag="animal")),
        Edit(action=editing.add_tags(["dog"]), fitting=SampleFilter(caption_contains="dog")),
    ]
    outcome = apply_edits(MANIFEST, edits)
    assert outcome.num_changed == 1
    assert outcome.manifest.samples[2].tags == ("animal", "dog")


def test_edits_that_end_where_they_began_change_nothing() -> None:
    edits = [Edit(action=editing.add_tags(["x"])), Edit(action=editing.remove_tags(["x"]))]
    assert apply_edits(MANIFEST, edits).num_changed == 0
    assert apply_edits(MANIFEST, edits).manifest == MANIFEST


def test_a_sample_that_is_named_must_be_there() -> None:
    names = frozenset(["cat.png"])
    with pytest.raises(SampleNotFoundError) as caught:
        after(Edit(action=editing.remove, names=names), Edit(action=editing.remove, names=names))
    assert caught.value.file_name == "cat.png"


@pytest.mark.parametrize(
    "action",
    [
        editing.add_suffix("x" * (MAX_CAPTION_CHARACTERS - 4)),
        editing.replace_text("a", "x" * MAX_CAPTION_CHARACTERS),
        editing.add_tags([f"tag {number}" for number in range(MAX_TAGS)]),
    ],
)
def test_too_much_is_refused_and_names_edit_and_file(action: Action) -> None:
    fits = Edit(action=editing.add_tags(["x"]))
    with pytest.raises(EditError, match=r"cat\.png") as caught:
        after(fits, Edit(action=action, names=frozenset(["cat.png"])))
    assert caught.value.edit == 1
