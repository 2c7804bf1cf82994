"""Requests to the Hugging Face Hub and to the hosts that it leads to.

The endpoint is the operator's choice and trusted. Whatever it redirects to is not: that must be https, on
an allowed host, and have none but public addresses. The address that was checked is the one that is
connected to, so that a name cannot mean another one a moment later.
"""

import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from sfumato_chassis.public_addresses import is_public
from sfumato_datasets.hub_request import (
    HubCancelledError,
    HubRefusedError,
    HubTooLargeError,
    HubUnreachableError,
)
from sfumato_datasets.hub_settings import HubSettings
from sfumato_datasets.hub_sockets import CHECK_SECONDS, WatchedSockets
from sfumato_datasets.notes import printable_name

NUM_CONNECTIONS: Final = 8
"""So many files are fetched at once."""
MAX_REDIRECTS: Final = 8
CONNECT_TIMEOUT_SECONDS: Final = 10.0
READ_TIMEOUT_SECONDS: Final = 30.0
"""Longest silence of a server."""
CHUNK_BYTES: Final = 1 << 20

_REST_BYTES: Final = 1 << 14
_URL: Final = re.compile(r"[!-~]{1,16384}")
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_PORTS: Final = {"http": 80, "https": 443}
_NO_URL: Final = "the Hub redirects to something that is not a URL"
_USER_AGENT: Final = "sfumato-datasets"


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int

    @property
    def host_header(self) -> str:
        """As HTTP names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose body is not read yet. `is_of_endpoint`: not of a host that it led to."""

    response: urllib3.BaseHTTPResponse
    is_of_endpoint: bool

    @property
    def status(self) -> int:
        """As HTTP numbers it."""
        return self.response.status

    def header(self, name: str) -> str:
        """Empty where there is none."""
        return str(self.response.headers.get(name, ""))


def addresses_of(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, in the order of the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class HubConnection:
    """Asks the Hub, from several threads at once. Close it after use.

    Args:
        cancelled: Set when the import is cancelled.
        resolve: Host and port to addresses.
        monotonic: Seconds of a clock that never goes back.
    """

    def __init__(
        self,
        settings: HubSettings,
        *,
        cancelled: threading.Event,
        resolve: Callable[[str, int], Sequence[str]] = addresses_of,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._endpoint = origin_of(settings.endpoint)
        self._cancelled = cancelled
        self._abandoned = threading.Event()
        self._resolve = resolve
        self._monotonic = monotonic
        self._deadline = monotonic() + settings.timeout_seconds
        self._tls = ssl.create_default_context()
        self._pools: dict[tuple[Origin, str], urllib3.HTTPConnectionPool] = {}
        self._lock = threading.Lock()
        self._sockets = WatchedSockets(self._is_wanted)

    def close(self) -> None:
        """Closes every connection."""
        self._sockets.close()
        for pool in self._pools.values():
            pool.close()

    def abandon(self) -> None:
        """Ends what other threads still fetch."""
        self._abandoned.set()

    def _is_wanted(self) -> bool:
        try:
            self.check()
        except (HubCancelledError, HubTooLargeError):
            return False
        return True

    def check(self) -> None:
        """Raises HubCancelledError or, where the time is up, HubTooLargeError."""
        if self._cancelled.is_set() or self._abandoned.is_set():
            raise HubCancelledError("cancelled")
        if self._monotonic() > self._deadline:
            raise HubTooLargeError(f"takes longer than {self._settings.timeout_seconds:g} s")

    def pause(self, seconds: float) -> None:
        """Waits before the next try. Raises what :meth:`check` raises, also meanwhile."""
        resume_at = self._monotonic() + seconds
        while (remaining := resume_at - self._monotonic()) > 0:
            self._cancelled.wait(min(remaining, CHECK_SECONDS))
            self.check()

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[Answer]:
        """The answer to a GET, whatever its status, after every redirect; its body is not read yet.

        Raises:
            HubUnreachableError: No answer, or none in time.
            HubRefusedError: It leads to where it must not.
            HubCancelledError, HubTooLargeError: As of :meth:`check`.
        """
        for _ in range(1 + MAX_REDIRECTS):
            self.check()
            response = self._send(url, headers)
            try:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    yield Answer(response, is_of_endpoint=origin_of(url) == self._endpoint)
                    return
                url = followed(url, location)
            finally:
                _finish(response)
        raise HubRefusedError(f"the Hub leads on more than {MAX_REDIRECTS} times")

    def chunks(self, answer: Answer) -> Iterator[bytes]:
        """The body, as it comes.

        Raises:
            HubUnreachableError: It broke off.
            HubCancelledError, HubTooLargeError: As of :meth:`check`.
        """
        while True:
            self.check()
            try:
                chunk = answer.response.read1(CHUNK_BYTES)
            except HTTPError as error:
                self.check()  # that may be what ended it
                raise HubUnreachableError("the Hub broke off") from error
            if not chunk:
                self.check()  # an end that was forced can look like one of its own
                return
            yield chunk

    def _send(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        origin = origin_of(url)
        sent = {"User-Agent": _USER_AGENT, "Accept-Encoding": "identity", **headers}
        if origin == self._endpoint and self._settings.token:
            sent["Authorization"] = f"Bearer {self._settings.token}"
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        failure: HTTPError | None = None
        for address in self._addresses(origin):
            try:
                return self._pool(origin, address).urlopen(
                    "GET",
                    target,
                    headers={**sent, "Host": origin.host_header},
                    retries=False,
                    redirect=False,
                    preload_content=False,
                    decode_content=False,
                )
            except (NewConnectionError, ConnectTimeoutError) as error:
                failure = error  # the next address may answer
            except SSLError as error:
                self.check()
                raise HubUnreachableError(f"no trusted TLS connection to {origin.host}") from error
            except HTTPError as error:
                self.check()
                raise HubUnreachableError(f"{origin.host} does not answer") from error
        self.check()
        raise HubUnreachableError(f"{origin.host} cannot be reached") from failure

    def _addresses(self, origin: Origin) -> Sequence[str]:
        """Where an origin may be reached. Raises HubRefusedError."""
        shown = printable_name(origin.host)
        if origin != self._endpoint:
            if origin.scheme != "https" or origin.port != _PORTS["https"]:
                raise HubRefusedError(f"the Hub leads to {shown}, but not over https on port 443")
            if not _is_allowed(origin.host, self._settings.hosts):
                raise HubRefusedError(f"the Hub leads to {shown}, which is not allowed")
        try:
            found = self._resolve(origin.host, origin.port)
        except OSError as error:
            raise HubUnreachableError(f"{shown} has no address") from error
        if origin != self._endpoint and not all(map(is_public, found)):
            raise HubRefusedError(f"the Hub leads to {shown}, which is not on the internet")
        return found

    def _pool(self, origin: Origin, address: str) -> urllib3.HTTPConnectionPool:
        timeout = urllib3.Timeout(connect=CONNECT_TIMEOUT_SECONDS, read=READ_TIMEOUT_SECONDS)
        with self._lock:
            if (origin, address) not in self._pools:
                if origin.scheme == "http":
                    pool = urllib3.HTTPConnectionPool(
                        address, origin.port, timeout=timeout, maxsize=NUM_CONNECTIONS
                    )
                else:
                    pool = urllib3.HTTPSConnectionPool(
                        address,
                        origin.port,
                        timeout=timeout,
                        maxsize=NUM_CONNECTIONS,
                        ssl_context=self._tls,
                        server_hostname=origin.host,  # whose certificate it must be
                    )
                self._sockets.watch(pool)
                self._pools[origin, address] = pool
            return self._pools[origin, address]


def origin_of(url: str) -> Origin:
    """Where a URL leads. Raises HubRefusedError for what is no plain http or https URL."""
    try:
        parts = urlsplit(url) if _URL.fullmatch(url) else None
        if parts is None or parts.username is not None or parts.password is not None:
            raise ValueError
        host = (parts.hostname or "").rstrip(".")
        port = parts.port or _PORTS[parts.scheme]
        host.encode("idna")  # as the resolver does: no empty and no endless label
    except (ValueError, KeyError) as error:
        raise HubRefusedError(_NO_URL) from error
    if not host:
        raise HubRefusedError(_NO_URL)
    return Origin(parts.scheme, host, port)


def followed(url: str, location: str) -> str:
    """Where a reference in the answer to `url` leads. Raises HubRefusedError for what is none."""
    if _URL.fullmatch(location) is None:
        raise HubRefusedError(_NO_URL)
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise HubRefusedError(_NO_URL) from error


def _finish(response: urllib3.BaseHTTPResponse) -> None:
    """Reads what little is left, so that the connection can be used again; else it is closed."""
    with suppress(HTTPError):
        response.read(_REST_BYTES)
    response.close()


def _is_allowed(host: str, allowed: Sequence[str]) -> bool:
    return any(
        host.endswith(name[1:].lower()) if name.startswith("*.") else host == name.lower()
        for name in allowed
    )
