import sys

import pytest

from sfumato_chassis import command


@pytest.mark.parametrize("arguments", [["serve"], ["datasets", "list"]])
def test_an_interrupt_while_modules_load_is_one_line(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["sfumato", *arguments])
    monkeypatch.setattr(command, "run", interrupt)
    assert command.main() == command.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"
