"""One line of a benchmark: ours against a floor, measured in the same run."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What was measured.

    Attributes:
        what: What was measured.
        unit: Of both figures.
        ours: This program.
        floor: The least that anything built on the same ground can take.
        target: What ``ratio`` must not pass.
        more_is_better: Whether the figures are rates; then the ratio must not fall below the target.
    """

    what: str
    unit: str
    ours: float
    floor: float
    target: float
    more_is_better: bool = False

    @property
    def ratio(self) -> float:
        """Ours over the floor."""
        return self.ours / self.floor

    @property
    def is_met(self) -> bool:
        """Whether the target is reached."""
        return self.ratio >= self.target if self.more_is_better else self.ratio <= self.target
