"""One update of every run of the studies' full size, on a machine that lacks packages; a script.

``python full_size.py OUT BLOCKED... -- STUDY...`` reproduces the studies at full size into OUT: real data, networks and
configurations, but a run ends after its first update, and measurements take few sequences and points. A run is stopped
after the update, so that it is read back from its checkpoint before it ends. Packages in BLOCKED cannot be imported.
It prints, as JSON, which jobs failed and why, by study.
"""

from __future__ import annotations

import importlib.abc
import json
import sys
from dataclasses import replace
from pathlib import Path

FEW = {"sequences": 2, "points": 3, "batches": 1}  # arguments of measurements, at most
HELD_OUT_TEXT = 20_000  # bytes that are read of held-out text, which measurements read whole


class Blocker(importlib.abc.MetaPathFinder):
    """Refuses to import some packages."""

    def __init__(self, names):
        self.names = set(names)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class OneUpdate:
    """An engine that does each job at once, in this process, and only as much of it as shows that it can be done."""

    slots = 1

    def __init__(self):
        self.endings = []

    def start(self, jobs, logs):
        from mnemoscope.sweeps import run_job

        for job, folder in jobs:
            ways = [job]
            if job.call == "mnemoscope.sweeps:train_run":
                ways = [replace(job, options={"until": 1}), replace(job, options={"until": 1, "end": True})]
            ending = None
            for way in ways:
                if ending is None or ending.outcome == "ended":
                    ending = run_job(way, folder, lambda: False)
            drop_large_checkpoints(folder)
            self.endings.append((job.name, ending))

    def wait(self, seconds):
        ended, self.endings = self.endings, []
        return ended

    def stop(self):
        pass


def drop_large_checkpoints(folder):
    """Delete what no measurement reads of a large network: the disk holds only some of them."""
    for checkpoint in folder.glob("checkpoints/0*.safetensors"):
        if checkpoint.stat().st_size > 20_000_000:
            checkpoint.unlink()


def shortened(study):
    """The study with runs that are evaluated and saved after their first update, and small measurements."""
    from mnemoscope.studies import train
    from mnemoscope.training import RunConfig

    def jobs(scale, seed):
        found, names = {}, {}
        for key, job in study.jobs(scale, seed).items():
            if "function" in job.config:
                arguments = {name: fewer(name, value) for name, value in job.config["arguments"].items()}
                needs = [names[name] for name in job.needs]
                new = replace(job, config=job.config | {"arguments": arguments, "needs": needs}, needs=needs)
            else:
                config = RunConfig.from_dict(job.config)
                soon = replace(config.fit, evaluate_every=1, evaluate_batches=1, checkpoint_every=1, log_every=1)
                new = train(replace(config, fit=soon))
            found[key], names[job.name] = new, new.name
        return found

    return replace(study, jobs=jobs)


def fewer(name, value):
    """An argument of a measurement, made small."""
    if name not in FEW:
        return value
    return [min(one, FEW[name]) for one in value] if isinstance(value, list) else min(value, FEW[name])


def cut_held_out_text():
    """Have texts for validation and test end after some lines; the training text, and so all words, stay whole."""
    from mnemoscope.tasks import _corpora

    whole = _corpora.read_data_file

    def cut(path):
        text = whole(path)
        return text if "train" in path else text[: text.index(b"\n", HELD_OUT_TEXT) + 1]

    _corpora.read_data_file = cut


def main(arguments):
    out, rest = Path(arguments[0]), arguments[1:]
    split = rest.index("--")
    sys.meta_path.insert(0, Blocker(rest[:split]))
    from mnemoscope.studies import _study, choose, reproduce

    cut_held_out_text()
    found = {}
    for study in choose(rest[split + 1 :]):
        _study.STUDIES[study.id] = shortened(study)
        try:
            (outcome,) = reproduce([study.id], "full", engine=OneUpdate(), out=out)
        except Exception as error:  # the others are looked at all the same
            import traceback

            traceback.print_exc()
            found[study.id] = [f"{type(error).__name__}: {error}"]
        else:
            if outcome.skipped or outcome.failed or outcome.missing:
                found[study.id] = [outcome.skipped, f"{outcome.missing} missing", *outcome.failed]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
