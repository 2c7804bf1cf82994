"""Names that the server makes. They never come from a caller and are safe as file names."""

import secrets
from collections.abc import Callable

NewName = Callable[[str], str]
"""Takes a prefix such as ``run`` and returns a new name such as ``run-1f0c...``."""


def random_name(prefix: str) -> str:
    """``prefix`` and 64 random bits."""
    return f"{prefix}-{secrets.token_hex(8)}"
