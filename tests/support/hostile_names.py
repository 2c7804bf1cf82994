"""Names that no file should have, and that some archive, folder or caller gives it nevertheless."""

from __future__ import annotations

from dataclasses import dataclass

from pictures import picture


@dataclass(frozen=True, kw_only=True)
class NameCase:
    """A name as its bytes, and the reason that its note has."""

    name: str
    raw: bytes
    reason: str = "NAME_UNSAFE"

    @property
    def text(self) -> str:
        """The name as Python has it."""
        return self.raw.decode("utf-8", "surrogateescape")

    @property
    def fits_an_upload(self) -> bool:
        """Whether a message can say it."""
        fits = 0 < len(self.text) <= 255 and "\0" not in self.text
        return fits and self.raw == self.text.encode("utf-8", "replace")

    @property
    def fits_a_folder(self) -> bool:
        """Whether a file can have it."""
        fits = 0 < len(self.raw) <= 255 and self.raw != b".."
        return fits and not set(b"/\0") & set(self.raw)


_UNSAFE = {
    "parent folder": b"../slip.png",
    "parent folder, farther": b"../../../../etc/slip.png",
    "parent folder within": b"a/../slip.png",
    "parent folder itself": b"..",
    "absolute": b"/etc/slip.png",
    "network path": b"//server/share/slip.png",
    "drive letter": b"C:\\slip.png",
    "drive letter and slash": b"C:/slip.png",
    "drive letter alone": b"C:slip.png",
    "backslashes": b"..\\..\\slip.png",
    "backslash within": b"folder\\slip.png",
    "UNC": b"\\\\server\\share\\slip.png",
    "device path": b"\\\\.\\C:\\slip.png",
    "other stream": b"slip.png:other",
    "NUL": b"slip.exe\0.png",
    "empty": b"",
    "CON": b"CON",
    "device name with suffix": b"aux.png",
    "port": b"com1.txt",
    "device name with spaces": b"NUL .png",
    "superscript port": "COM¹.png".encode(),
    "trailing dot": b"slip.png.",
    "trailing space": b"slip.png ",
    "leading space": b" slip.png",
    "300 bytes": b"x" * 296 + b".png",
    "256 bytes of other letters": "ä".encode() * 126 + b".png",
    "newline": b"slip\n.png",
    "carriage return": b"slip\r.png",
    "escape sequence": b"slip\x1b[2J.png",
    "delete": b"slip\x7f.png",
    "right to left override": "slip\u202egnp.exe.png".encode(),
    "isolate": "slip\u2066x.png".encode(),
    "line separator": "slip\u2028.png".encode(),
    "next line": "slip\x85.png".encode(),
    "wildcard": b"slip*.png",
    "question mark": b"slip?.png",
    "pipe": b"slip|.png",
    "quotes": b'slip".png',
    "no UTF-8": b"slip\xff.png",
    "UTF-8 cut short": b"slip\xe2\x82.png",
    "surrogate": b"slip\xed\xa0\x80.png",
}
_TWINS = {
    "composed": "caf\u00e9_twin.png".encode(),
    "decomposed": "cafe\u0301_twin.png".encode(),
    "upper case": b"TWIN.png",
    "lower case": b"twin.png",
    "sharp s": "stra\u00dfe.png".encode(),
    "two s": b"strasse.png",
}


def name_cases() -> list[NameCase]:
    """Every case that is refused for its name alone or for another in the same set."""
    cases = [NameCase(name=name, raw=raw) for name, raw in _UNSAFE.items()]
    if len({case.raw for case in cases}) != len(cases):
        raise AssertionError("two cases of one name")
    twins = [NameCase(name=name, raw=raw, reason="NAME_COLLISION") for name, raw in _TWINS.items()]
    stems = [
        NameCase(
            name=f"one stem, {suffix}", raw=b"pair." + suffix.encode(), reason="STEM_DUPLICATE"
        )
        for suffix in ("png", "jpg")
    ]
    return [*cases, *twins, *stems]


def good_files() -> dict[str, bytes]:
    """What an import accepts, whatever lies beside it."""
    return {"good.png": picture(1), "good.txt": b"a good one"}
