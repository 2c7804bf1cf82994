"""Counts of calls and their time."""

from collections import defaultdict
from collections.abc import Mapping


class Metrics:
    """Calls by method and outcome, with the seconds they took."""

    def __init__(self) -> None:
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, method: str, outcome: str, seconds: float) -> None:
        """Adds one call."""
        self._calls[method, outcome] += 1
        self._seconds[method] += seconds

    @property
    def calls(self) -> Mapping[tuple[str, str], int]:
        """Number of calls by full method name and outcome (``OK`` or a reason)."""
        return self._calls

    @property
    def seconds(self) -> Mapping[str, float]:
        """Total seconds by full method name."""
        return self._seconds
