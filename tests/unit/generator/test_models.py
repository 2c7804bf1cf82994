"""Finding models on this machine."""

import json
import shutil

import pytest

from sfumato_chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from sfumato_generator.configuration import ModelSource
from sfumato_generator.models import locate_model

COMMIT = "b" * 40
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def lay_model(tiny_model):
    """Copies a tiny model, with another pipeline or other settings of its denoiser."""

    def lay(folder, *, family="flux.1", pipeline=None, **denoiser):
        shutil.copytree(tiny_model(family), folder)
        change(folder / "model_index.json", {} if pipeline is None else {"_class_name": pipeline})
        change(folder / "transformer" / "config.json", denoiser)
        return folder

    return lay


def change(file, values):
    """Sets values in a JSON file; None removes one."""
    record = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))


def locate(source, root, family=None):
    return locate_model(source, family, roots=[root / "models"], cache_roots=lambda: [root / "hub"])


def directory(path):
    return ModelSource(kind="directory", reference=path)


@pytest.mark.parametrize(
    ("flag", "repository"),
    [
        ({"guidance_embeds": None}, "black-forest-labs/FLUX.1-dev"),
        ({"guidance_embeds": True}, "black-forest-labs/FLUX.1-dev"),
        ({"guidance_embeds": False}, "black-forest-labs/FLUX.1-schnell"),
    ],
)
def test_the_base_that_a_folder_behaves_like(lay_model, tmp_path, flag, repository):
    lay_model(tmp_path / "models" / "mine", **flag)
    located = locate(directory("mine"), tmp_path)
    assert located.info.name == "flux.1"
    assert located.base.repository == repository
    assert located.marker == ""


def test_a_link_that_leads_out_of_the_roots(lay_model, tmp_path):
    lay_model(tmp_path / "elsewhere")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotFound) as refusal:
        locate(directory("link"), tmp_path)
    assert refusal.value.reason is Reason.PATH_NOT_FOUND


def test_a_snapshot_is_pinned_unless_a_revision_was_named(lay_model, tmp_path):
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
def test_pickles_are_refused_where_there_is_nothing_else(lay_model, tmp_path, suffix):
    weights = lay_model(tmp_path / "models" / "mine") / "transformer" / WEIGHTS
    pickled = weights.with_suffix(suffix)
    pickled.write_bytes(b"")
    locate(directory("mine"), tmp_path)
    weights.unlink()
    with pytest.raises(FailedPrecondition) as refusal:
        locate(directory("mine"), tmp_path)
    assert refusal.value.reason is Reason.WEIGHTS_UNSAFE
    assert refusal.value.details == {"component": "transformer"}


def test_a_component_that_cannot_be_loaded(lay_model, tmp_path):
    shutil.rmtree(lay_model(tmp_path / "models" / "mine") / "tokenizer_2")
    with pytest.raises(FailedPrecondition) as refusal:
        locate(directory("mine"), tmp_path)
    assert refusal.value.reason is Reason.MODEL_UNSUPPORTED
    assert refusal.value.message == "tokenizer_2: is missing"


def test_the_longest_side_is_the_models(lay_model, tmp_path):
    model = lay_model(tmp_path / "models" / "mine", family="z-image", axes_lens=[1536, 40, 32])
    assert locate(directory("mine"), tmp_path).max_side == 32 * 16
    change(model / "transformer" / "config.json", {"axes_lens": "many"})
    with pytest.raises(FailedPrecondition) as refusal:
        locate(directory("mine"), tmp_path)
    assert refusal.value.details == {"component": "transformer"}


def test_another_family_than_the_folder_is_of(lay_model, tmp_path):
    lay_model(tmp_path / "models" / "mine")
    with pytest.raises(InvalidArgument) as refusal:
        locate(directory("mine"), tmp_path, "z-image")
    assert refusal.value.violations[0].path == "configuration.family"


def test_what_is_not_a_model_of_a_known_family(lay_model, tmp_path):
    lay_model(tmp_path / "models" / "other", pipeline="WuerstchenPipeline")
    with pytest.raises(FailedPrecondition) as refusal:
        locate(directory("other"), tmp_path)
    assert refusal.value.reason is Reason.MODEL_UNSUPPORTED
    assert str(tmp_path) not in refusal.value.message
    assert locate(directory("other"), tmp_path, "flux.1").info.name == "flux.1"
