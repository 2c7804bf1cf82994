"""The command ``sfumato``: ``serve`` is served here, everything else by the client's command line.

A service must be ready fast and need not have typer, rich or the client's stubs, so the client is
loaded by name and only when it is asked for.
"""

import sys
from importlib import import_module


def main() -> int:
    """Runs the command; answers its exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["serve"]:
        from sfumato_chassis.serve import main as serve

        return serve(arguments[1:])
    code: int = import_module("sfumato_client.cli.main").main(arguments)
    return code
