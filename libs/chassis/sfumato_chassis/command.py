"""The command ``sfumato``: ``serve`` and ``keys`` run here, everything else in the client's command line.

A service must be ready fast and need not have typer, rich or the client's stubs, so the client is
loaded by name and only when it is asked for.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from sfumato_chassis.exit_codes import INTERRUPTED


def main() -> int:
    """Runs the command; answers its exit code."""
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        # While the first modules load; from then on serve and the client have answers of their own.
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def run(arguments: Sequence[str]) -> int:
    """Serves, sees to keys, or leaves the arguments to the client."""
    if arguments[:1] == ["serve"]:
        from sfumato_chassis.serve import main as serve

        return serve(arguments[1:])
    if arguments[:1] == ["keys"]:
        from sfumato_chassis.keys_command import main as keys

        return keys(arguments[1:])
    code: int = import_module("sfumato_client.cli.main").main(arguments)
    return code
