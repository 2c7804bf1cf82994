"""A worker process: runs the plan in a JSON file.

Usage: run_plan.py PLAN BLOBS. Prints the files under the base model that were opened, one a line.
"""

import dataclasses
import json
import os
import sys
from pathlib import Path

import torch

from sfumato_trainer.events import Event
from sfumato_trainer.settings import TrainingPlan
from sfumato_trainer.stages.run import run_training


class Reporter:
    def emit(self, event: Event) -> None:
        json.dumps(dataclasses.asdict(event), allow_nan=False)

    def command(self) -> str:
        return "none"

    def may_publish(self) -> bool:
        return True

    def failpoint(self, name: str) -> None:
        assert name


def main(plan_file: str, blobs: str) -> int:
    torch.set_num_threads(1)
    plan = TrainingPlan.from_json(json.loads(Path(plan_file).read_text()))
    model = str(plan.settings.base_model.reference)
    opened: set[str] = set()

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(model):
            opened.add(os.path.relpath(str(arguments[0]), model))

    sys.addaudithook(audit)
    outcome = run_training(plan, Reporter(), blob_path=lambda digest: Path(blobs) / digest)
    sys.stdout.write("\n".join(sorted(opened)))
    return 0 if outcome.result == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
