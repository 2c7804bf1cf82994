import pytest

from sfumato_datasets.names import (
    DatasetNameError,
    UnsafeNameError,
    check_dataset_name,
    check_file_name,
    colliding,
    collision_key,
    sharing_stem,
)

NFC, NFD = "caf\u00e9.png", "cafe\u0301.png"


@pytest.mark.parametrize(
    "name", ["a", "A", "0", "my dog", "a.b-c_d", "x" * 128, "console", "com10"]
)
def test_good_dataset_names(name: str) -> None:
    check_dataset_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a..b",
        "a.",
        "a ",
        " a",
        "-a",
        "_a",
        "x" * 129,
        "ä",
        "a/b",
        "a\\b",
        "a\0",
        "a\n",
        "con",
        "NUL",
        "nul.txt",
        "Com1",
        "LPT9.tar.gz",
        "aux .x",
    ],
)
def test_bad_dataset_names(name: str) -> None:
    with pytest.raises(DatasetNameError) as refusal:
        check_dataset_name(name)
    assert refusal.value.reason == "FIELD_INVALID"


@pytest.mark.parametrize(
    "name",
    [
        "a.png",
        "Größe 10 (2).jpg",
        "日本.webp",
        "a..b.png",
        "~a.png",
        "-a.png",
        ".hidden",
        "é" * 127,
    ],
)
def test_good_file_names(name: str) -> None:
    check_file_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../a.png",
        "/etc/passwd",
        "a/b.png",
        "a\\b.png",
        "C:a.png",
        "a.png:stream",
        "a*.png",
        "a?.png",
        'a".png',
        "<a>.png",
        "a|b.png",
        "a\0.png",
        "a\n.png",
        "a\x7f.png",
        "\ud800.png",
        "a\u2028.png",
        "a.",
        "a.png ",
        " a.png",
        "CON.png",
        "con",
        "nul.tar.gz",
        "COM1.png",
        "lpt¹.png",
        "CONIN$.png",
        "é" * 128,
        "x" * 256,
    ],
)
def test_bad_file_names(name: str) -> None:
    with pytest.raises(UnsafeNameError) as refusal:
        check_file_name(name)
    assert refusal.value.reason == "NAME_UNSAFE"


def test_names_collide_by_case_and_by_normalisation() -> None:
    assert collision_key(NFC) == collision_key(NFD) == collision_key("CAFÉ.PNG")
    assert collision_key("straße.png") == collision_key("STRASSE.png")
    assert collision_key("a.png") != collision_key("b.png")
    assert colliding(["a.png", "A.png", "b.png", NFC, NFD]) == {
        "a.png": ("A.png",),
        "A.png": ("a.png",),
        NFC: (NFD,),
        NFD: (NFC,),
    }
    assert colliding(["a.png", "a.png"]) == {"a.png": ("a.png",)}


def test_images_of_one_stem() -> None:
    names = ["a.png", "a.jpg", "A.webp", "a.b.png", "b.png"]
    assert sharing_stem(names) == {
        "a.png": ("A.webp", "a.jpg"),
        "a.jpg": ("A.webp", "a.png"),
        "A.webp": ("a.jpg", "a.png"),
    }
