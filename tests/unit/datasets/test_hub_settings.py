from pathlib import Path

import pytest

from sfumato_chassis.config import ConfigError
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.hub_request import HubGatedError, HubRefusedError
from sfumato_datasets.hub_settings import check_hub_settings, hub_cache, hub_settings


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({"HF_HUB_CACHE": "~/e"}, str(Path.home() / "e")),
    ],
)
def test_where_the_cache_is(environment: dict[str, str], expected: str) -> None:
    assert hub_cache(environment) == Path(expected)


@pytest.mark.parametrize(
    ("configured", "environment", "expected"),
    [
        ("", {}, "https://huggingface.co"),
        ("", {"HF_ENDPOINT": "https://mirror.example/hf/"}, "https://mirror.example/hf"),
        ("https://a.example", {"HF_ENDPOINT": "https://b.example"}, "https://a.example"),
        ("http://127.0.0.1:8080", {}, "http://127.0.0.1:8080"),
        ("http://[::1]:8080", {}, "http://[::1]:8080"),
        ("http://localhost", {}, "http://localhost"),
    ],
)
def test_where_the_hub_is(configured: str, environment: dict[str, str], expected: str) -> None:
    config = DatasetsConfig(hub_endpoint=configured)
    assert hub_settings(config, {"HF_HOME": "/none", **environment}).endpoint == expected


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://mirror.example",
        "http://10.0.0.1",
        "ftp://mirror.example",
        "mirror.example",
        "https://",
        "https://mirror.example:port",
        "https://user:password@mirror.example",
        "https://mirror.example?query",
        "file:///etc/passwd",
    ],
)
def test_what_is_no_address_of_a_hub(endpoint: str) -> None:
    with pytest.raises(HubRefusedError) as refusal:
        hub_settings(DatasetsConfig(hub_endpoint=endpoint), {"HF_HOME": "/none"})
    assert "password" not in str(refusal.value)


def test_where_the_token_is(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_of_the_home\n")
    (tmp_path / "named").write_text("\n hf_of_the_file \n")
    home = {"HF_HOME": str(tmp_path)}
    named = {**home, "HF_TOKEN_PATH": str(tmp_path / "named")}
    for environment, token in (
        ({"HF_HOME": "/none"}, ""),
        (home, "hf_of_the_home"),
        ({**home, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}, ""),
        (named, "hf_of_the_file"),
        ({**named, "HF_TOKEN": "hf_of_the_variable"}, "hf_of_the_variable"),
        ({**named, "HUGGING_FACE_HUB_TOKEN": "hf_of_the_old"}, "hf_of_the_old"),
        ({**named, "HF_TOKEN": "  "}, "hf_of_the_file"),
    ):
        settings = hub_settings(DatasetsConfig(), environment)
        assert settings.token == token
        assert not token or token not in repr(settings)


@pytest.mark.parametrize("token", ["hf_a b", "hf_a\r\nX-Other: 1", "hf_é", "h" * 1025])
def test_a_token_with_characters_that_no_token_has(token: str) -> None:
    with pytest.raises(HubGatedError) as refusal:
        hub_settings(DatasetsConfig(), {"HF_HOME": "/none", "HF_TOKEN": token})
    assert token not in str(refusal.value)


def test_a_server_does_not_start_with_what_it_cannot_use() -> None:
    check_hub_settings(DatasetsConfig(), {"HF_HOME": "/none"})
    for environment in ({"HF_ENDPOINT": "http://mirror.example"}, {"HF_TOKEN": "a b"}):
        with pytest.raises(ConfigError, match="datasets: "):
            check_hub_settings(DatasetsConfig(), {"HF_HOME": "/none", **environment})


def test_when_nothing_is_downloaded() -> None:
    home = {"HF_HOME": "/none"}
    assert not hub_settings(DatasetsConfig(), home).offline
    assert hub_settings(DatasetsConfig(allow_download=False), home).offline
    assert hub_settings(DatasetsConfig(), {**home, "HF_HUB_OFFLINE": "true"}).offline
