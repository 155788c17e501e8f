"""Versions, hashes and licences of the dependencies: what is written down is what is installed."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

import pytest

from dependencies import ROOT, canonical, constraints, license_of, lock, locked

ALLOWED = {  # licences that Apache-2.0 software may depend on
    *("Apache-2.0", "MIT", "MIT-CMU", "BSD", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "ISC", "PSF-2.0", "MPL-2.0"),
    *("LGPL", "LGPL-3.0-only", "LGPL-3.0-or-later", "BSL-1.0", "CNRI-Python", "Zlib", "CC0-1.0", "LLVM-exception"),
    "Unlicense",
}


def listed_licenses() -> dict[str, str]:
    table = (ROOT / "docs/security.md").read_text().split("| package | licence |")[1]
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", table, flags=re.MULTILINE))


def test_lock_has_the_versions_of_the_constraints_and_a_hash_of_each() -> None:
    found = locked()
    for package, number in constraints().items():
        assert found[package][0].partition("+")[0] == number
    assert set(found) - set(constraints()) == {"setuptools", "wheel"}  # to build with
    assert all(len(hashes) >= 1 for _, hashes in found.values())


def test_lock_names_no_address() -> None:
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_lock_is_made_from_the_report_of_pip() -> None:
    archive = {"archive_info": {"hashes": {"sha256": "0" * 64}}, "url": "https://somewhere/x.whl"}
    items = [
        {"metadata": {"name": "Some_Package", "version": "1.2"}, "download_info": archive},
        {"metadata": {"name": "mnemoscope", "version": "0.1.0"}, "download_info": {"dir_info": {}}},
    ]
    text = lock({"install": items})
    assert text.endswith(f"some-package==1.2 \\\n    --hash=sha256:{'0' * 64}\n")
    assert "somewhere" not in text
    assert "mnemoscope==" not in text


@pytest.mark.parametrize("package", sorted(constraints()))
def test_license_is_listed_allowed_and_true(package: str) -> None:
    listed = listed_licenses()[package]
    assert set(re.split(r" (?:AND|OR|WITH) ", listed)) <= ALLOWED
    try:
        installed = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if installed.partition("+")[0] == constraints()[package]:
        assert license_of(package) == listed


def test_no_package_is_listed_that_is_not_used() -> None:
    assert set(listed_licenses()) == set(constraints())
    assert canonical("Some.Thing_x") == "some-thing-x"
