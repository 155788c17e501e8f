"""The versions, hashes and licences of what the development environment is made of.

pip install --dry-run --ignore-installed --report report.json -c constraints.txt \
        -e '.[dev,zoo,ray,slurm]' setuptools wheel
python -m dependencies lock report.json > requirements.lock     `make lock` does both
python -m dependencies licenses                                 the table of docs/security.md
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HEAD = """\
# The development environment with the hash of every file: make locked, or
#   pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation -e .
# For Linux on x86-64 and Python 3.11; torch is its build for CPUs, from PyTorch's own index. `make lock` makes it anew.
"""


def canonical(name: str) -> str:
    """A package's name as every tool spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock(report: dict[str, Any]) -> str:
    """The lock file for what pip's report says it would install: names, versions, hashes, and no addresses."""
    lines = []
    for item in report["install"]:
        archive = item["download_info"].get("archive_info")
        if archive is not None:  # else it is this project
            name, version = canonical(item["metadata"]["name"]), item["metadata"]["version"]
            lines.append(f"{name}=={version} \\\n    --hash=sha256:{archive['hashes']['sha256']}\n")
    return HEAD + "".join(sorted(lines))


def constraints() -> dict[str, str]:
    """The versions in constraints.txt by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonical(name): version for name, version in pairs}


def locked() -> dict[str, tuple[str, list[str]]]:
    """The versions and hashes in requirements.lock by canonical name."""
    text = (ROOT / "requirements.lock").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, _, rest = line.partition("==")
            found[name] = (rest.split()[0], re.findall(r"--hash=sha256:([0-9a-f]{64})\b", rest))
    return found


_FAMILIES = {  # words in what packages say of their licence, and its name
    "Apache": "Apache-2.0",
    "MIT": "MIT",
    "3-Clause": "BSD-3-Clause",
    "New BSD": "BSD-3-Clause",
    "BSD": "BSD",
    "Mozilla": "MPL-2.0",
    "MPL": "MPL-2.0",
    "Python Software Foundation": "PSF-2.0",
    "PSF": "PSF-2.0",
    "HPND": "MIT-CMU",
    "ISC": "ISC",
    "LGPL": "LGPL",
    "Unlicense": "Unlicense",
}


def license_of(package: str) -> str:
    """The licence of an installed package: an SPDX expression where it gives one, else the name of a family."""
    found = metadata(package)
    if found.get("License-Expression"):
        return str(found["License-Expression"])
    for words in _statements(found):
        for word, name in _FAMILIES.items():
            if word in words:
                return name
    return "unknown"


def _statements(found: PackageMetadata) -> Iterator[str]:
    for classifier in found.get_all("Classifier") or []:
        if classifier.startswith("License ::") and not classifier.endswith("OSI Approved"):
            yield classifier
    yield (found.get("License") or "").strip()[:200]


def licenses() -> dict[str, str]:
    """The licences of all packages in constraints.txt that are installed."""
    found = {}
    for package in sorted(constraints()):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = license_of(package)
    return found


if __name__ == "__main__":
    if sys.argv[1] == "lock":
        print(lock(json.loads(Path(sys.argv[2]).read_text())), end="")
    else:
        print("\n".join(f"| {package} | {name} |" for package, name in licenses().items()))
