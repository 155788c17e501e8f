"""A data file is found, checked and only then read; whatever is wrong with it ends in one line that names it."""

import gzip
import hashlib
import io
import re
import tarfile
import threading
import zipfile
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks import _archives, _data
from mnemoscope.tasks._archives import parse_idx, read_file, read_member
from mnemoscope.tasks._registry import FILES, LICENSES, TRAIN_COMMANDS, DataFile, Mirror

CONTENT = b"a small corpus\nof two lines\n" * 40
one_line = partial(pytest.raises, MnemoscopeError)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """The user's data folder and the cache, both empty."""
    own, cache = tmp_path / "own", tmp_path / "cache"
    own.mkdir()
    monkeypatch.setenv("MNEMOSCOPE_DATA", str(own))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return own, cache / "mnemoscope"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine; what it serves is put into its dictionary, and every request is written down."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # a proxy would look for it on its own machine
    pages: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            page = pages.get(self.path)
            self.send_response(200 if page is not None else 404)
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *arguments):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=partial(running.serve_forever, poll_interval=0.02), daemon=True).start()
    yield f"http://127.0.0.1:{running.server_port}", pages, asked
    running.shutdown()
    running.server_close()


def listed(monkeypatch, *mirrors: Mirror, name="ptb/small.txt.gz") -> str:
    """Put a file with CONTENT into the catalogue."""
    monkeypatch.setitem(FILES, name, DataFile(name, len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), mirrors))
    return name


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_data_folder_comes_before_the_cache(folders, monkeypatch):
    own, cache = folders
    name = listed(monkeypatch)
    put(cache, name, b"never read")
    put(own, name, gzip.compress(CONTENT))
    assert _data.read_data_file(name) == CONTENT


@pytest.mark.parametrize("unpacked", [True, False])
def test_cache_is_used_if_the_data_folder_lacks_a_file(folders, monkeypatch, unpacked):
    name = listed(monkeypatch)
    if unpacked:
        put(folders[1], name.removesuffix(".gz"), CONTENT)
    else:
        put(folders[1], name, gzip.compress(CONTENT))
    assert _data.read_data_file(name) == CONTENT
    monkeypatch.delenv("MNEMOSCOPE_DATA")
    assert _data.read_data_file(name) == CONTENT


WRONG = {
    "another text": (gzip.compress(CONTENT.replace(b"two", b"six")), "is not the published file"),
    "a cut text": (gzip.compress(CONTENT[:-1]), f"is cut: {len(CONTENT) - 1} bytes of contents instead of"),
    "a longer text": (gzip.compress(CONTENT + b"x"), "holds more than"),
    "a cut archive": (gzip.compress(CONTENT)[:-9], "is cut or not what its name says"),
    "a flipped bit": (gzip.compress(CONTENT)[:-2] + b"\x01\x01", "is cut or not what its name says"),
    "no archive": (CONTENT, "is cut or not what its name says"),
    "nothing": (b"", "is cut"),
    "a bomb": (gzip.compress(bytes(10**7)), "holds more than"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_wrong_file_is_refused_and_never_used(folders, monkeypatch, server, what):
    """Nor is it quietly replaced: the network would have had the right one."""
    url, pages, asked = server
    pages["/f"] = CONTENT
    name = listed(monkeypatch, Mirror(f"{url}/f", sha(CONTENT)))
    content, words = WRONG[what]
    path = put(folders[0], name, content)
    with one_line(match=f"^{path} {words}[^\n]*$"):
        _data.read_data_file(name)
    assert asked == []


def test_folder_in_place_of_a_file_is_refused(folders, monkeypatch):
    name = listed(monkeypatch)
    (folders[0] / name).mkdir(parents=True)
    with one_line(match="is a folder, not a file"):
        _data.read_data_file(name)


def test_missing_data_folder_is_refused(folders, monkeypatch, tmp_path):
    monkeypatch.setenv("MNEMOSCOPE_DATA", str(tmp_path / "nowhere"))
    with one_line(match="MNEMOSCOPE_DATA = '.*nowhere' is not a folder"):
        _data.read_data_file(listed(monkeypatch))


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_download_is_verified_cached_and_not_repeated(folders, monkeypatch, server):
    url, pages, asked = server
    pages["/small.txt"] = CONTENT
    name = listed(monkeypatch, Mirror(f"{url}/small.txt", sha(CONTENT)))
    assert _data.read_data_file(name) == CONTENT
    assert _data.read_data_file(name) == CONTENT
    assert asked == ["/small.txt"]
    assert (folders[1] / "ptb/small.txt").read_bytes() == CONTENT
    assert list(folders[0].iterdir()) == []


def test_archive_is_downloaded_once_for_all_its_files(folders, monkeypatch, server):
    url, pages, asked = server
    pages["/all.zip"] = zipped({"corpus/one.txt": CONTENT, "corpus/two.txt": CONTENT})
    mirror = partial(Mirror, f"{url}/all.zip", sha(pages["/all.zip"]))
    for number in ("one", "two"):
        name = listed(monkeypatch, mirror(f"{number}.txt"), name=f"ptb/{number}.txt.gz")
        assert _data.read_data_file(name) == CONTENT
    assert asked == ["/all.zip"]


def test_next_mirror_is_used_if_one_is_gone_or_wrong(folders, monkeypatch, server):
    url, pages, asked = server
    pages |= {"/lies.txt": CONTENT[::-1], "/good.txt": CONTENT}
    mirrors = [Mirror(f"{url}/{page}.txt", sha(CONTENT)) for page in ("gone", "lies", "good")]
    assert _data.read_data_file(listed(monkeypatch, *mirrors)) == CONTENT
    assert asked == ["/gone.txt", "/lies.txt", "/good.txt"]


def test_download_with_wrong_content_is_never_cached(folders, monkeypatch, server):
    """Even where the archive itself is the published one."""
    url, pages, _ = server
    pages |= {"/lies.txt": CONTENT[::-1], "/other.zip": zipped({"small.txt": CONTENT[::-1]})}
    mirrors = Mirror(f"{url}/lies.txt", sha(CONTENT)), Mirror(f"{url}/other.zip", sha(pages["/other.zip"]), "small.txt")
    with one_line(match=r"could not be downloaded \(.*lies.txt: .*other.zip.* is not the published file[^\n]*$"):
        _data.read_data_file(listed(monkeypatch, *mirrors))
    assert not (folders[1] / "ptb").exists()


def test_no_network(folders, monkeypatch):
    name = listed(monkeypatch, Mirror("http://127.0.0.1:9/small.txt", sha(CONTENT)))
    with one_line(match=r"^ptb/small.txt.gz is neither in the folder MNEMOSCOPE_DATA names .*[^\n]*$"):
        _data.read_data_file(name)


def test_cache_that_cannot_be_written(folders, monkeypatch, server, tmp_path):
    url, pages, _ = server
    pages["/small.txt"] = CONTENT
    put(folders[1], "ptb", b"a file where a folder should be")
    with one_line(match="could not be written"):
        _data.read_data_file(listed(monkeypatch, Mirror(f"{url}/small.txt", sha(CONTENT))))


def test_license_is_printed_once_and_not_on_stdout(folders, monkeypatch, capsys):
    name = listed(monkeypatch)
    put(folders[0], name, gzip.compress(CONTENT))
    _data._print_license.cache_clear()
    _data.read_data_file(name)
    _data.read_data_file(name)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count(LICENSES["ptb"]) == 1


def test_registry_is_complete():
    for file in FILES.values():
        assert file.dataset in LICENSES
        assert file.dataset in TRAIN_COMMANDS
        assert len(file.sha256) == 64
        assert file.size > 0
        assert file.mirrors
        for mirror in file.mirrors:
            assert mirror.url.startswith("https://")
            assert re.fullmatch("[0-9a-f]{64}", mirror.sha256)


def zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # without today's date
    return buffer.getvalue()


def tarred(files: dict[str, bytes], kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, target
            archive.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


ARCHIVES = {".zip": zipped, ".tgz": tarred}
packed = pytest.mark.parametrize("suffix", list(ARCHIVES))


@packed
def test_archive_member_is_read_from_any_folder(tmp_path, suffix):
    path = put(tmp_path, f"a{suffix}", ARCHIVES[suffix]({"./deep/x.txt": b"no", "./deep/y.txt": CONTENT}))
    assert read_member(path, "y.txt", len(CONTENT)) == CONTENT
    with one_line(match="holds no file called z.txt"):
        read_member(path, "z.txt", 10)


@packed
@pytest.mark.parametrize("name", ["../y.txt", "/etc/y.txt", "a/../../y.txt", "..\\y.txt", "C:/y.txt"])
def test_archive_with_path_traversal_is_refused(tmp_path, suffix, name):
    path = put(tmp_path, f"a{suffix}", ARCHIVES[suffix]({"y.txt": CONTENT, name: b"out"}))
    before = sorted(tmp_path.rglob("*"))
    with one_line(match=f"^{path} is not safe: its entry .* leads outside"):
        read_member(path, "y.txt", len(CONTENT))
    assert sorted(tmp_path.rglob("*")) == before


@packed
def test_decompression_bomb_in_a_member_is_refused(tmp_path, suffix):
    path = put(tmp_path, f"a{suffix}", ARCHIVES[suffix]({"y.txt": bytes(10**7)}))
    with one_line(match="unpacks to more than the 1000 bytes"):
        read_member(path, "y.txt", 1000)


def test_decompression_bomb_around_a_member_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_archives, "MAX_UNPACKED", 10**6)
    path = put(tmp_path, "a.tgz", tarred({"filler": bytes(10**7), "y.txt": CONTENT}))
    with one_line(match="unpacks to more than 1000000 bytes"):
        read_member(path, "y.txt", len(CONTENT))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_symlinks_and_devices_in_a_tar_are_not_followed(tmp_path, kind):
    put(tmp_path, "secret", b"secret")
    path = put(tmp_path, "a.tgz", tarred({"y.txt": b""}, kind, str(tmp_path / "secret")))
    with one_line(match="holds no file called y.txt"):
        read_member(path, "y.txt", 100)


def answer_or_complaint(reading, *arguments):
    """What was read, or the line that says why not; any other exception is a failure."""
    try:
        return reading(*arguments)
    except MnemoscopeError as error:
        complaint = str(error)
    assert "\n" not in complaint
    return complaint


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([".zip", ".tgz", ".gz", ".tar"]), st.binary(max_size=60), st.data())
def test_damaged_archives_are_refused_in_one_line(tmp_path_factory, suffix, noise, drawn):
    """Cut anywhere, overwritten anywhere, or noise altogether: an answer or a MnemoscopeError, nothing else."""
    whole = {".zip": zipped, ".tgz": tarred}.get(suffix, lambda files: gzip.compress(CONTENT, mtime=0))(
        {"y.txt": CONTENT}
    )
    start = drawn.draw(st.integers(0, len(whole)))
    damaged = drawn.draw(st.sampled_from([whole[:start], whole[:start] + noise + whole[start + len(noise) :], noise]))
    path = put(tmp_path_factory.getbasetemp(), f"fuzz{suffix}", damaged)
    for reading in (partial(read_member, path, "y.txt"), partial(read_file, path)):
        answer = answer_or_complaint(reading, 2 * len(CONTENT))
        assert len(answer) <= 2 * len(CONTENT) if isinstance(answer, bytes) else str(path) in answer


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(int(side).to_bytes(4, "big") for side in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def test_idx():
    images = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(parse_idx(idx_bytes(images), "x"), images)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an IDX file"),
        (b"\x89PNG\r\n", "not an IDX file of bytes: it begins with 89 50 4e 47"),
        (b"\0\0\x0d\x01\0\0\0\0", "not an IDX file"),
        (b"\0\0\x08\xff\0\0", "not an IDX file"),
        (idx_bytes(np.zeros((3, 3)))[:-1], "is cut: 8 values"),
        (b"\0\0\x08\x04" + b"\xff" * 16, "is cut: 0 values"),
    ],
)
def test_idx_of_another_type_is_refused(content, words):
    with one_line(match=f"^digits.gz {words}|^digits.gz is {words}"):
        parse_idx(content, "digits.gz")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_idx_of_noise(noise):
    for content in (noise, b"\0\0\x08" + noise):
        answer = answer_or_complaint(parse_idx, content, "noise")
        assert "noise" in answer if isinstance(answer, str) else answer.size == len(content) - 4 * (1 + content[3])
