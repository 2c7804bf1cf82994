"""Rebuilds this folder from the npm package that the pictures come from.

npm pack emoji-datasource-google@16.0.0
python examples/emoji/make.py emoji-datasource-google-16.0.0.tgz
"""

import argparse
import hashlib
import tarfile
from pathlib import Path

PACKAGE_SHA256 = "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438"
FOLDER_IN_PACKAGE = "package/img/google/64"
FOLDER = Path(__file__).parent

CAPTIONS_BY_CODE_POINT = {
    "1f34e": "a red apple",
    "1f34c": "a banana",
    "1f347": "a bunch of grapes",
    "1f34b": "a lemon",
    "1f353": "a strawberry",
    "1f349": "a slice of watermelon",
    "1f431": "a cat face",
    "1f436": "a dog face",
    "1f438": "a frog face",
    "1f427": "a penguin",
    "1f419": "an octopus",
    "1f41e": "a ladybird",
    "1f600": "a grinning face",
    "1f60e": "a smiling face with sunglasses",
    "2764-fe0f": "a red heart",
    "1f499": "a blue heart",
    "1f33b": "a sunflower",
    "1f335": "a cactus",
    "1f354": "a hamburger",
    "1f369": "a doughnut",
    "1f388": "a red balloon",
    "1f680": "a rocket",
    "26bd": "a football",
    "1f4a1": "a light bulb",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    package: Path = parser.parse_args().package
    if hashlib.sha256(package.read_bytes()).hexdigest() != PACKAGE_SHA256:
        raise SystemExit("this is not emoji-datasource-google 16.0.0")
    with tarfile.open(package) as archive:
        for code_point, caption in CAPTIONS_BY_CODE_POINT.items():
            picture = archive.extractfile(f"{FOLDER_IN_PACKAGE}/{code_point}.png")
            if picture is None:
                raise SystemExit(f"the package has no picture {code_point}")
            slug = caption.split(" ", 1)[1].replace(" ", "_")
            (FOLDER / f"{slug}.png").write_bytes(picture.read())
            (FOLDER / f"{slug}.txt").write_text(f"{caption}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
