"""Compiled CUDA kernels on disk: found again, and never taken from anybody else or in pieces."""

from __future__ import annotations

import os

import pytest

from mnemoscope.kernels._cuda import binary_cache, compiler, driver

NAME = binary_cache.key("source", "options")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MNEMOSCOPE_KERNEL_CACHE", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def test_a_stored_binary_is_loaded_again(folder):
    assert binary_cache.load(NAME) is None
    binary_cache.store(NAME, b"\x7fELF code")
    assert binary_cache.load(NAME) == b"\x7fELF code"
    assert [path.name for path in folder.iterdir()] == [NAME]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_every_part_of_the_key_counts():
    parts = [("a", "b"), ("ab", ""), ("", "ab"), ("a", "c"), ("b", "a")]
    assert len({binary_cache.key(*each) for each in parts}) == len(parts)


def test_a_torn_or_changed_file_is_not_loaded(folder):
    binary_cache.store(NAME, b"code")
    whole = (folder / NAME).read_bytes()
    for damaged in (whole[:-1], whole[:10], b"", whole[:-1] + b"X"):
        (folder / NAME).write_bytes(damaged)
        assert binary_cache.load(NAME) is None


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_can_write_is_not_loaded(folder, mode):
    binary_cache.store(NAME, b"code")
    (folder / NAME).chmod(mode)
    assert binary_cache.load(NAME) is None


def test_a_folder_that_others_can_write_is_not_read(folder):
    binary_cache.store(NAME, b"code")
    folder.chmod(0o777)
    assert binary_cache.load(NAME) is None


def test_a_file_of_another_user_is_not_loaded(monkeypatch):
    binary_cache.store(NAME, b"code")
    monkeypatch.setattr(os, "getuid", lambda: os.stat("/").st_uid + 12345)
    assert binary_cache.load(NAME) is None


def test_links_and_fifos_are_not_loaded(folder, tmp_path):
    binary_cache.store(NAME, b"code")
    (folder / NAME).rename(tmp_path / "elsewhere")
    (folder / NAME).symlink_to(tmp_path / "elsewhere")
    assert binary_cache.load(NAME) is None
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME, 0o600)
    assert binary_cache.load(NAME) is None


def test_a_folder_that_cannot_be_made_stops_nobody(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MNEMOSCOPE_KERNEL_CACHE", str(tmp_path / "file" / "kernels"))
    binary_cache.store(NAME, b"code")
    assert binary_cache.load(NAME) is None


def test_an_empty_name_turns_the_cache_off(monkeypatch):
    monkeypatch.setenv("MNEMOSCOPE_KERNEL_CACHE", "")
    assert binary_cache.folder() is None
    binary_cache.store(NAME, b"code")
    assert binary_cache.load(NAME) is None


def test_a_kernel_is_compiled_once_and_again_for_other_defines_or_drivers(monkeypatch):
    compiled = []

    def compile_kernel(source, name, capability, headers, options):
        compiled.append((name, capability, options))
        return b"binary of " + " ".join(options).encode()

    monkeypatch.setattr(compiler, "cuda_compiler", lambda: compile_kernel)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(driver, "version", lambda: 12040)
    first = compiler.build("cells_forward", {"ROWS": 1, "SAVE": True})
    assert first == b"binary of -DROWS=1 -DSAVE=1"
    assert compiler.build("cells_forward", {"SAVE": True, "ROWS": 1}) == first
    assert len(compiled) == 1
    assert compiler.build("cells_forward", {"ROWS": 4, "SAVE": True}) != first
    monkeypatch.setattr(driver, "version", lambda: 12050)
    compiler.build("cells_forward", {"ROWS": 1, "SAVE": True})
    assert [name for name, _, _ in compiled] == ["cells_forward"] * 3
