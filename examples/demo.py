"""The main job, end to end: captioned pictures become an adapter, the adapter becomes pictures.

Usage: python examples/demo.py --out FOLDER. It starts the services, calls the same commands as a user
would, draws a contact sheet and prints every RPC that it made as a grpcurl line, with the command that serves
what it left at the same address.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sfumato_imaging.contact_sheet import contact_sheet

ROOT = Path(__file__).resolve().parent
PICTURES = ROOT / "emoji"
FAMILY = "z-image"
MODEL = "tiny-z-image"
SIDE = 64
CELL = 128
PROMPTS: Mapping[str, str] = {
    "red_apple": "a red apple",
    "blue_heart": "a blue heart",
    "sunflower": "a sunflower",
    "frog_face": "a frog face",
}
TRAINING = (
    *("--resolution", str(SIDE), "--train-steps", "400", "--batch-size", "4"),
    *("--learning-rate", "1e-2", "--rank", "16", "--save-steps", "100", "--no-random-flip"),
)
SEED = "7"


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """Calls ``sfumato`` against one server and keeps the grpcurl lines of its RPCs."""

    address: str
    lines: list[str]

    def __call__(self, *words: str) -> list[Mapping[str, object]]:
        """Runs a command and answers the JSON objects that it prints."""
        shown = " ".join(word if " " not in word else f'"{word}"' for word in words)
        print(f"$ sfumato {shown}")
        finished = subprocess.run(
            [*sfumato(), "--address", self.address, "--json", "--trace", *words],
            capture_output=True,
            text=True,
            check=False,
        )
        errors = finished.stderr.splitlines()
        self.lines.extend(line for line in errors if line.startswith("grpcurl "))
        if finished.returncode != 0:
            raise SystemExit("\n".join(line for line in errors if not line.startswith("grpcurl ")))
        return [json.loads(line) for line in finished.stdout.splitlines()]


def sfumato() -> Sequence[str]:
    """The command line of this interpreter."""
    return [sys.executable, "-m", "sfumato_client.cli.main"]


@contextmanager
def services(data_dir: Path) -> Iterator[str]:
    """Serves all three on a free port; yields the address."""
    with (data_dir / "services.log").open("w") as log:
        server = subprocess.Popen(
            [*sfumato(), "serve", "--data-dir", str(data_dir), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={"OMP_NUM_THREADS": "1", **os.environ, "SFUMATO_DATASETS_IMPORT_ROOTS": str(ROOT)},
        )
        assert server.stdout is not None
        ready = server.stdout.readline()
        if not ready:
            raise SystemExit(f"the services did not start, see {log.name}")
        try:
            yield ready.split()[-1]
        finally:
            server.terminate()
            server.wait()


def paint(command: CommandLine, out: Path, adapter: str | None) -> list[Image.Image]:
    """One picture for each prompt, from the same seed."""
    painted = []
    for name, prompt in PROMPTS.items():
        folder = out / ("base" if adapter is None else "adapter") / name
        chosen = [] if adapter is None else ["--adapter", adapter]
        size = ["--width", str(SIDE), "--height", str(SIDE), "--steps", "12"]
        command(
            *("generate", prompt, "--model", MODEL, "--seed", SEED, "--out", str(folder)),
            *size,
            *chosen,
        )
        (file,) = folder.iterdir()
        painted.append(Image.open(file).convert("RGB"))
    return painted


def main(out: Path) -> None:
    began = time.monotonic()
    shutil.rmtree(out, ignore_errors=True)
    data_dir = out / "data"
    (data_dir / "models").mkdir(parents=True)
    print(f"$ sfumato tiny {FAMILY} {data_dir / 'models' / MODEL}")
    subprocess.run([*sfumato(), "tiny", FAMILY, str(data_dir / "models" / MODEL)], check=True)
    with services(data_dir) as address:
        command = CommandLine(address=address, lines=[])
        command("datasets", "import", PICTURES.name, "emoji", "--server-side")
        command("train", "start", "emoji", "--model", MODEL, *TRAINING)
        (run,) = command("train", "list")
        command("train", "show", str(run["name"]))
        base = paint(command, out, None)
        adapted = paint(command, out, str(run["name"]))
        command("gallery", "list")
    originals = [Image.open(PICTURES / f"{name}.png").convert("RGBA") for name in PROMPTS]
    papers = [Image.new("RGBA", image.size, "white") for image in originals]
    dataset = [
        Image.alpha_composite(paper, image).convert("RGB")
        for paper, image in zip(papers, originals, strict=True)
    ]
    sheet = contact_sheet(
        [list(row) for row in zip(dataset, base, adapted, strict=True)],
        row_labels=list(PROMPTS.values()),
        column_labels=["dataset", "base model", "with adapter"],
        cell_side=CELL,
    )
    sheet.save(out / "contact-sheet.png")
    script = out / "rpcs.sh"
    script.write_text("".join(f"{line}\n" for line in command.lines))
    port = address.rpartition(":")[2]
    serve = [".venv/bin/sfumato", "serve", "--data-dir", str(data_dir), "--port", port]
    print(
        f"\nThe {len(command.lines)} RPCs that this made (also in {script}). To run them, serve again:"
    )
    print(f"\n{shlex.join(serve)}\n")
    print("\n".join(command.lines))
    print(f"\n{out / 'contact-sheet.png'} is ready after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    main(parser.parse_args().out)
