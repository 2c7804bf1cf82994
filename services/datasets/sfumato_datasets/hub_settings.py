"""Where the Hugging Face Hub is and what is spent on it: from the configuration and the environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sfumato_chassis.config import ConfigError
from sfumato_chassis.remote_access import is_loopback
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.hub_request import DEFAULT_ENDPOINT, HubGatedError, HubRefusedError

_TRUE: Final = ("1", "ON", "YES", "TRUE")
_URL: Final = re.compile(r"[!-~]{1,2048}")
_TOKEN: Final = re.compile(r"[!-~]{1,1024}")
_MAX_TOKEN_FILE_BYTES: Final = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class HubSettings:
    """What holds for every import from the Hub.

    Attributes:
        endpoint: Scheme, host and port of the Hub or a mirror, which the operator trusts.
        hosts: Others that it may lead to; `*.` in front stands for every name below.
        cache: The Hub's cache on this machine.
        token: Sent to the endpoint alone; empty for none.
        offline: Whether only the cache is read.
        max_bytes: Most that one import fetches, and that its images in Parquet take.
        timeout_seconds: For all that one attempt of an import fetches.
    """

    endpoint: str = DEFAULT_ENDPOINT
    hosts: tuple[str, ...]
    cache: Path
    token: str = field(default="", repr=False)
    offline: bool = False
    max_bytes: int
    timeout_seconds: float


def hub_settings(config: DatasetsConfig, environment: Mapping[str, str]) -> HubSettings:
    """The settings, by the variables that the Hub's own library heeds.

    Raises:
        HubRefusedError: The endpoint is no URL, or http beyond this machine.
        HubGatedError: The token holds what no token holds.
    """
    return HubSettings(
        endpoint=_endpoint(config.hub_endpoint or environment.get("HF_ENDPOINT", "")),
        hosts=config.hub_hosts,
        cache=hub_cache(environment),
        token=_token(environment),
        offline=not config.allow_download or _is_on(environment, "HF_HUB_OFFLINE"),
        max_bytes=config.hub_max_bytes,
        timeout_seconds=config.hub_timeout_seconds,
    )


def check_hub_settings(config: DatasetsConfig, environment: Mapping[str, str]) -> None:
    """Refuses at the start what every import from the Hub would be refused for. Raises ConfigError."""
    try:
        hub_settings(config, environment)
    except (HubRefusedError, HubGatedError) as error:
        raise ConfigError(f"datasets: {error}") from error


def hub_cache(environment: Mapping[str, str]) -> Path:
    """The Hub's cache on this machine."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return _of_home(environment[name])
    return _hub_home(environment) / "hub"


def _hub_home(environment: Mapping[str, str]) -> Path:
    shared = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return _of_home(environment.get("HF_HOME") or f"{shared}/huggingface")


def _of_home(path: str) -> Path:
    """The path; where it begins with a home that is not known, one at which nothing lies."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path("/nonexistent")


def _endpoint(configured: str) -> str:
    endpoint = (configured or DEFAULT_ENDPOINT).rstrip("/")
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname or "", parts.port
        if _URL.fullmatch(endpoint) is None or parts.fragment:
            raise ValueError
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https") or parts.username or parts.query:
        raise HubRefusedError("hub_endpoint, or HF_ENDPOINT, is not an http or https URL")
    if parts.scheme == "http" and not is_loopback(host):
        raise HubRefusedError("hub_endpoint, or HF_ENDPOINT, is plain http beyond this machine")
    return endpoint


def _token(environment: Mapping[str, str]) -> str:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environment.get(name, "").strip():
            return _checked(environment[name].strip())
    if _is_on(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        return ""
    named = environment.get("HF_TOKEN_PATH")
    path = _of_home(named) if named else _hub_home(environment) / "token"
    try:
        with path.open("rb") as file:
            read = file.read(_MAX_TOKEN_FILE_BYTES)
    except OSError:
        return ""
    written = read.decode("utf-8", errors="replace").strip()
    return _checked(written) if written else ""


def _checked(token: str) -> str:
    if _TOKEN.fullmatch(token) is None:
        raise HubGatedError("the server's token of the Hub has characters that no token has")
    return token


def _is_on(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").upper() in _TRUE
