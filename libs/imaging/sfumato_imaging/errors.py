"""Why an image was refused.

    ImageError
    ├── NotAnImageError         NOT_AN_IMAGE              of no accepted format
    ├── TruncatedImageError     IMAGE_TRUNCATED           the data ends before the picture does
    ├── CorruptImageError       IMAGE_CORRUPT             damaged inside, or the decoder warned
    ├── ImageTooLargeError      IMAGE_TOO_LARGE           file, side, pixels or memory over a limit
    └── UnsupportedPixelsError  IMAGE_PIXELS_UNSUPPORTED  no defined white (32 bit, float)

Messages name numbers and formats, never paths, so they may be shown to a client.
"""

from typing import ClassVar


class ImageError(Exception):
    """Base of every refusal; `reason` is stable and upper snake case."""

    reason: ClassVar[str] = "IMAGE_UNREADABLE"


class NotAnImageError(ImageError):
    reason = "NOT_AN_IMAGE"


class TruncatedImageError(ImageError):
    reason = "IMAGE_TRUNCATED"


class CorruptImageError(ImageError):
    reason = "IMAGE_CORRUPT"


class ImageTooLargeError(ImageError):
    reason = "IMAGE_TOO_LARGE"


class UnsupportedPixelsError(ImageError):
    reason = "IMAGE_PIXELS_UNSUPPORTED"
