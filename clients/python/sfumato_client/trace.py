"""Shows each call as the grpcurl line that makes the same one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from sfumato_client.channel import Tls

# A longer request (a chunk of a file) is not worth reading, and breaks terminals.
MAX_REQUEST_CHARACTERS = 16_384


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedCall:
    """One attempt of one call."""

    address: str
    service: str
    method: str
    request_json: str
    # The call carried a key.
    authorized: bool
    tls: Tls | None = None

    def grpcurl(self) -> str:
        """A line for a POSIX shell. It names the key's variable and never holds the key.

        A request of more than MAX_REQUEST_CHARACTERS is left to be given on standard input.
        """
        words = ["grpcurl", *_encryption(self.tls)]
        if self.authorized:
            words += ["-H", '"authorization: Bearer $SFUMATO_API_KEY"']
        too_long = len(self.request_json) > MAX_REQUEST_CHARACTERS
        words += ["-d", "@" if too_long else shlex.quote(self.request_json)]
        words += [shlex.quote(self.address), f"{self.service}/{self.method}"]
        if too_long:
            words += [f"  # {len(self.request_json)} characters of JSON on standard input"]
        return " ".join(words)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """Interceptors that hand each call over before it is made. Give it to a client as its
    `interceptors`."""

    record: Callable[[TracedCall], None]
    # How the client's channels are encrypted.
    tls: Tls | None = None

    def __call__(self, address: str) -> Sequence[grpc.aio.ClientInterceptor]:
        """One interceptor for each kind of call: grpc.aio takes an object for one kind only."""

        def record(call: TracedCall) -> None:
            self.record(replace(call, tls=self.tls))

        return [_UnaryTrace(address, record), _StreamTrace(address, record)]


class _UnaryTrace(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, address: str, record: Callable[[TracedCall], None]) -> None:
        self._address = address
        self._record = record

    async def intercept_unary_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Any], Awaitable[grpc.aio.UnaryUnaryCall[Any, Any]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> grpc.aio.UnaryUnaryCall[Any, Any]:
        self._record(_traced(self._address, client_call_details, request))
        return await continuation(client_call_details, request)


class _StreamTrace(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, address: str, record: Callable[[TracedCall], None]) -> None:
        self._address = address
        self._record = record

    async def intercept_unary_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Any], Awaitable[grpc.aio.UnaryStreamCall[Any, Any]]
        ],
        client_call_details: grpc.aio.ClientCallDetails,
        request: Any,
    ) -> grpc.aio.UnaryStreamCall[Any, Any]:
        self._record(_traced(self._address, client_call_details, request))
        return await continuation(client_call_details, request)


def _encryption(tls: Tls | None) -> list[str]:
    if tls is None:
        return ["-plaintext"]
    files = {"-cacert": tls.ca_file, "-cert": tls.certificate_file, "-key": tls.key_file}
    return [
        word
        for option, file in files.items()
        if file is not None
        for word in (option, shlex.quote(str(file)))
    ]


def _traced(address: str, details: grpc.aio.ClientCallDetails, request: Message) -> TracedCall:
    # Its type says str; grpc.aio hands over bytes.
    method_path: str | bytes = details.method
    path = method_path.decode() if isinstance(method_path, bytes) else method_path
    service, _, method = path.lstrip("/").partition("/")
    keys = {key for key, _ in details.metadata or ()}
    return TracedCall(
        address=address,
        service=service,
        method=method,
        request_json=json.dumps(MessageToDict(request), ensure_ascii=False, separators=(",", ":")),
        authorized="authorization" in keys,
    )
