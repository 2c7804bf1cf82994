"""Finding models on this machine."""

import json

import pytest

from sfumato_chassis.errors import FailedPrecondition, NotFound, Reason
from sfumato_generator.configuration import ModelSource
from sfumato_generator.models import locate_model

COMMIT = "b" * 40


def lay_model(folder, *, pipeline="FluxPipeline", **denoiser):
    """A folder that looks like a model, without weights."""
    (folder / "transformer").mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": pipeline}))
    (folder / "transformer" / "config.json").write_text(json.dumps(denoiser))
    return folder


def locate(source, root, family=None):
    return locate_model(source, family, roots=[root / "models"], cache_roots=lambda: [root / "hub"])


def directory(path):
    return ModelSource(kind="directory", reference=path)


@pytest.mark.parametrize(
    ("flag", "repository"),
    [
        ({}, "black-forest-labs/FLUX.1-dev"),
        ({"guidance_embeds": True}, "black-forest-labs/FLUX.1-dev"),
        ({"guidance_embeds": False}, "black-forest-labs/FLUX.1-schnell"),
    ],
)
def test_the_base_that_a_folder_behaves_like(tmp_path, flag, repository):
    lay_model(tmp_path / "models" / "mine", **flag)
    located = locate(directory("mine"), tmp_path)
    assert located.info.name == "flux.1"
    assert located.base.repository == repository
    assert located.marker == ""


def test_a_link_that_leads_out_of_the_roots(tmp_path):
    lay_model(tmp_path / "elsewhere")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotFound) as refusal:
        locate(directory("link"), tmp_path)
    assert refusal.value.reason is Reason.PATH_NOT_FOUND


def test_a_snapshot_is_pinned_unless_a_revision_was_named(tmp_path):
    folder = tmp_path / "hub" / "models--black-forest-labs--FLUX.1-schnell"
    snapshot = lay_model(folder / "snapshots" / COMMIT)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    source = ModelSource(kind="hub", reference="black-forest-labs/FLUX.1-schnell")
    located = locate(source, tmp_path)
    named = locate(ModelSource(kind="hub", reference=source.reference, revision="main"), tmp_path)

    assert located.directory == named.directory == snapshot
    assert located.marker == f"rev-{COMMIT[:16]}"
    assert (located.source.revision, named.source.revision) == (COMMIT, "main")
    assert located.base.repository == source.reference


@pytest.mark.parametrize("suffix", [".bin", ".ckpt", ".pt", ".pth"])
def test_pickles_are_refused_where_there_is_nothing_else(tmp_path, suffix):
    model = lay_model(tmp_path / "models" / "mine")
    (model / "transformer" / f"weights{suffix}").write_bytes(b"")
    with pytest.raises(FailedPrecondition) as refusal:
        locate(directory("mine"), tmp_path)
    assert refusal.value.reason is Reason.WEIGHTS_UNSAFE
    (model / "transformer" / "weights.safetensors").write_bytes(b"")
    locate(directory("mine"), tmp_path)


def test_what_is_not_a_model_of_a_known_family(tmp_path):
    lay_model(tmp_path / "models" / "other", pipeline="WuerstchenPipeline")
    with pytest.raises(FailedPrecondition) as refusal:
        locate(directory("other"), tmp_path)
    assert refusal.value.reason is Reason.MODEL_UNSUPPORTED
    assert str(tmp_path) not in refusal.value.message
    assert locate(directory("other"), tmp_path, "flux.1").info.name == "flux.1"
