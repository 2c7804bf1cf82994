import pytest

from sfumato_datasets.hub_request import HubNotFoundError, HubRequest, check_names


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"id": "cats"},
        {"revision": "refs/convert/parquet"},
        {"revision": "v1.0-\xe9"},
        {"folder": "/data/train/"},
        {"folder": "Bilder f\xfcr alle"},
        {"folder": "/"},
    ],
)
def test_what_may_be_asked_for(asked: dict[str, str]) -> None:
    check_names(HubRequest(**{"id": "org/cats", **asked}))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"id": "org/.."}, "no dataset can have that id"),
        ({"id": "org--cats"}, "no dataset can have that id"),
        ({"revision": "../main"}, r"no revision can be called \.\./main"),
        ({"revision": "a//b"}, "no revision"),
        ({"revision": "a b"}, "no revision"),
        ({"revision": "a\nb"}, r"no revision can be called a\\nb"),
        ({"revision": "main?x=1"}, "no revision"),
        ({"revision": "x" * 256}, "no revision"),
        ({"folder": "a/../../b"}, "no folder can be called a/../../b"),
        ({"folder": "a\\b"}, "no folder"),
        ({"folder": "a\x00b"}, r"no folder can be called a\\x00b"),
        ({"folder": "./a"}, "no folder"),
    ],
)
def test_what_leads_elsewhere(asked: dict[str, str], message: str) -> None:
    with pytest.raises(HubNotFoundError, match=message):
        check_names(HubRequest(**{"id": "org/cats", **asked}))
