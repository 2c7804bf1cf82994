"""The grpcurl line of a call."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from sfumato_client.channel import Tls
from sfumato_client.trace import MAX_REQUEST_CHARACTERS, TracedCall


def traced(request_json: str = "{}", *, authorized: bool = False) -> TracedCall:
    return TracedCall(
        address="127.0.0.1:7433",
        service="sfumato.generator.v1.GeneratorService",
        method="CreateGeneration",
        request_json=request_json,
        authorized=authorized,
    )


def test_line_survives_the_shell() -> None:
    request = '{"prompt":"a cat\'s \\"$HOME\\" `x` \\\\ ü"}'
    assert shlex.split(traced(request).grpcurl()) == [
        "grpcurl",
        "-plaintext",
        "-d",
        request,
        "127.0.0.1:7433",
        "sfumato.generator.v1.GeneratorService/CreateGeneration",
    ]


def test_key_is_named_and_not_shown() -> None:
    line = traced(authorized=True).grpcurl()
    assert '-H "authorization: Bearer $SFUMATO_API_KEY"' in line


def test_long_request_is_left_to_standard_input() -> None:
    line = traced("x" * (MAX_REQUEST_CHARACTERS + 1)).grpcurl()
    assert "-d @ 127.0.0.1:7433" in line
    assert len(line) < 300


def test_encryption_is_the_clients() -> None:
    files = Tls(ca_file=Path("an authority"), certificate_file=Path("c"), key_file=Path("k"))
    line = replace(traced(), tls=files).grpcurl()
    expected = ["-cacert", "an authority", "-cert", "c", "-key", "k"]
    assert shlex.split(line)[1:7] == expected
    assert "plaintext" not in replace(traced(), tls=Tls()).grpcurl()
