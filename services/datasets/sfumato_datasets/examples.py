"""Small public datasets of the Hub to try things with.

Licences are what their publishers state.
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from sfumato_datasets.hub_request import DEFAULT_ENDPOINT, HubRequest


class UnknownExampleError(Exception):
    """There is no example of that name; the message lists those there are."""

    reason: ClassVar[str] = "FIELD_INVALID"


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A dataset of the Hub. At most `max_samples` of it are imported.

    `caption_column` is None where it has no captions.
    """

    name: str
    hub_id: str
    description: str
    licence: str
    max_samples: int
    caption_column: str | None = None

    @property
    def request(self) -> HubRequest:
        """What is asked of the Hub, but for the caption column."""
        return HubRequest(id=self.hub_id, max_samples=self.max_samples)

    @property
    def source_page(self) -> str:
        """Where it is described."""
        return f"{DEFAULT_ENDPOINT}/datasets/{self.hub_id}"


EXAMPLES: Final = (
    Example(
        name="butterflies",
        hub_id="huggan/smithsonian_butterflies_subset",
        description="Photographs of pinned butterflies from the Smithsonian, without captions",
        licence="cc0-1.0",
        max_samples=100,
    ),
    Example(
        name="dog",
        hub_id="diffusers/dog-example",
        description="One dog in ten photographs, without captions",
        licence="unknown",
        max_samples=10,
    ),
    Example(
        name="nouns",
        hub_id="m1guelpf/nouns",
        description="Pixel art characters with captions",
        licence="cc0-1.0",
        max_samples=100,
        caption_column="text",
    ),
    Example(
        name="tarot",
        hub_id="multimodalart/1920-raider-waite-tarot-public-domain",
        description="The Rider-Waite tarot of 1920 with captions",
        licence="public domain",
        max_samples=60,
        caption_column="caption",
    ),
    Example(
        name="tuxemon",
        hub_id="linoyts/Tuxemon",
        description="Creatures of the game Tuxemon with captions",
        licence="cc-by-sa-3.0",
        max_samples=60,
        caption_column="prompt",
    ),
)
"""By name."""


def find_example(name: str) -> Example:
    """The example of a name. Raises UnknownExampleError."""
    for example in EXAMPLES:
        if example.name == name:
            return example
    names = ", ".join(example.name for example in EXAMPLES)
    raise UnknownExampleError(f"there is no example {name!r}; there are {names}")
