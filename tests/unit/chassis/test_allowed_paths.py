from pathlib import Path

import pytest

from sfumato_chassis.allowed_paths import resolve_under_roots
from sfumato_chassis.errors import NotFound, Reason


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one model, beside something that is outside."""
    (tmp_path / "root" / "model").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    return tmp_path / "root"


def test_what_lies_under_a_root_is_found_by_its_real_path(root: Path) -> None:
    (root / "alias").symlink_to("model")
    for path in ("model", "alias", "./model/../model", str(root / "model")):
        found = resolve_under_roots(path, [root.parent / "absent", root], resource_type="model")
        assert found == (root / "model").resolve()


def test_a_root_may_be_a_link(root: Path) -> None:
    (root.parent / "link").symlink_to(root)
    found = resolve_under_roots("model", [root.parent / "link"], resource_type="model")
    assert found == (root / "model").resolve()


def test_missing_forbidden_and_endless_paths_answer_alike(root: Path) -> None:
    (root / "itself").symlink_to("itself")
    (root / "there").symlink_to("back")
    (root / "back").symlink_to("there/deeper")
    (root / "leak").symlink_to(root.parent / "outside")
    paths = [
        "absent",
        "",
        ".",
        "..",
        "../outside",
        str(root.parent / "outside"),
        "leak",
        "itself",
        "itself/model",
        "there",
        "back/model",
        "model\0",
        "m" * 5_000,
    ]
    for path in paths:
        with pytest.raises(NotFound) as refusal:
            resolve_under_roots(path, [root], resource_type="model")
        assert refusal.value.reason is Reason.PATH_NOT_FOUND
        assert refusal.value.message == f"no model {path[:200]!r} under the allowed folders"


def test_a_root_that_is_a_loop_holds_nothing(root: Path) -> None:
    loop = root.parent / "loop"
    loop.symlink_to(loop)
    with pytest.raises(NotFound):
        resolve_under_roots("model", [loop], resource_type="model")
    assert resolve_under_roots("model", [loop, root], resource_type="model").name == "model"
