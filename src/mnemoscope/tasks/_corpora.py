"""Text as integers: the papers' corpora or a file of the user's, encoded once and kept in memory.

A text takes four bytes for each symbol. It is encoded block by block, because lists of words, or numpy's intermediate
arrays, would take twenty times as much.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._archives import read_file
from mnemoscope.tasks._data import read_data_file

END = "<eos>"
UNKNOWN = "<unk>"
CHARACTERS = {"ptb": "ptb-char/ptb.char."}  # published texts by name: where their three files are
WORDS = {"wikitext-2": "wikitext-2/", "ptb": "ptb/ptb."}
MAX_TEXT_BYTES = 128 << 20  # of a user's text, unpacked: with 4 bytes a symbol beside it, it stays below 2 GB
MAX_WORDS = 4_000_000  # different words of a text
_BLOCK = 1 << 20  # characters that are encoded at a time


class Corpus(NamedTuple):
    """Three texts as int32 indices into `symbols`."""

    symbols: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor


def absolute(data: str, published: Iterable[str]) -> str:
    """Return the name of a text as a run keeps it: the path of a user's file from the root, if there is such a file."""
    if not isinstance(data, str) or data in published or not _is_file(data):
        return data
    return str(Path(data).absolute())


def corpus_sha256(corpus: Corpus) -> str:
    """Return a hash of the symbols and of the three texts."""
    digest = hashlib.sha256("\0".join(corpus.symbols).encode())
    for text in (corpus.train, corpus.valid, corpus.test):
        digest.update(len(text).to_bytes(8, "little"))
        digest.update(text.numpy().data)
    return digest.hexdigest()


@lru_cache(maxsize=4)
def characters(data: str) -> Corpus:
    """Return the characters of "ptb" or of a file. The alphabet is that of all three texts, in Unicode order."""
    if data in CHARACTERS:
        # Every second byte is the space that Mikolov's format sets between characters; "_" is a real space.
        raw = (read_data_file(f"{CHARACTERS[data]}{split}.txt.gz")[::2] for split in ("train", "valid", "test"))
        codes = [_codes(text.decode("ascii").replace("_", " ")) for text in raw]
    else:
        codes = _split_in_three(_codes(_user_text(data, CHARACTERS)))
    used = np.zeros(0x110000, dtype=bool)
    for code in codes:
        for block in _blocks(code):
            used[block] = True
    alphabet = np.flatnonzero(used)
    index = np.zeros(len(used), dtype=np.int32)
    index[alphabet] = np.arange(len(alphabet), dtype=np.int32)
    for code in codes:
        for block in _blocks(code):
            block[:] = index[block]
    return Corpus(tuple(map(chr, alphabet.tolist())), *(torch.from_numpy(code) for code in codes))


def _codes(text: str) -> np.ndarray:
    """Return the code points of a text (N,) int32."""
    return np.frombuffer(bytearray(text, "utf-32-le"), dtype=np.int32)


def _blocks(values: np.ndarray) -> Iterator[np.ndarray]:
    return (values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK))


@lru_cache(maxsize=4)
def words(data: str, vocabulary: int = 0) -> Corpus:
    """Return the words of "wikitext-2", "ptb" or a file. White space separates words; <eos> ends every line.

    The vocabulary is that of the training text, most frequent first, then the first to occur. Other words become <unk>.
    """
    index: dict[str, int] = {}
    if data in WORDS:
        files = (read_data_file(f"{WORDS[data]}{split}.txt.gz") for split in ("train", "valid", "test"))
        texts = [_word_numbers(file.decode(), index, data) for file in files]
    else:
        texts = _split_in_three(_word_numbers(_user_text(data, WORDS), index, data))

    # Numbers by first occurrence become numbers by frequency in the training text.
    found = list(index)
    counts = np.bincount(texts[0], minlength=len(found))
    kept = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)][: vocabulary or None]
    symbols = [found[number] for number in kept.tolist()]
    if UNKNOWN not in symbols:
        symbols.append(UNKNOWN)
    new_number = np.full(len(found), symbols.index(UNKNOWN), dtype=np.int32)
    new_number[kept] = np.arange(len(kept), dtype=np.int32)
    return Corpus(tuple(symbols), *(torch.from_numpy(new_number[text]) for text in texts))


def _word_numbers(text: str, index: dict[str, int], name: str) -> np.ndarray:
    """Return each word's number (N,) int32; `index` gets the numbers of words that it does not have yet."""
    numbers = array("i")
    for block in _text_blocks(text if text.endswith("\n") else text + "\n"):
        for word in block.replace("\n", f" {END} ").split():
            numbers.append(index.setdefault(word, len(index)))
        if len(index) > MAX_WORDS:
            raise MnemoscopeError(f"{name} has more than {MAX_WORDS:,} different words; use a smaller text")
    return np.frombuffer(numbers, dtype=np.int32) if numbers else np.zeros(0, dtype=np.int32)


def _text_blocks(text: str) -> Iterator[str]:
    """Yield a text in blocks that end at white space."""
    start = 0
    while start < len(text):
        gap = _SPACE.search(text, start + _BLOCK)
        end = gap.end() if gap else len(text)
        yield text[start:end]
        start = end


_SPACE = re.compile(r"\s")


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long, or holds a null
        return False


def _user_text(path: str, known: Iterable[str]) -> str:
    if not _is_file(path):
        names = ", ".join(map(repr, known))
        raise MnemoscopeError(f"data = {path!r} is not a file; allowed are {names} or the path of a text file")
    try:
        path.encode()
        text = read_file(Path(path), MAX_TEXT_BYTES).decode()
    except UnicodeEncodeError:
        raise MnemoscopeError(f"data = {path!r} is not allowed; rename the file to a name in UTF-8") from None
    except UnicodeDecodeError as error:
        raise MnemoscopeError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None
    if len(text) < 100:
        raise MnemoscopeError(f"{path} has {len(text)} characters; a text needs at least 100 to be split in three")
    return text


def _split_in_three(text: np.ndarray) -> list[np.ndarray]:
    """The first nine tenths to train on, and a twentieth each for validation and test."""
    train_end = len(text) * 90 // 100
    valid_end = len(text) * 95 // 100
    return [text[:train_end], text[train_end:valid_end], text[valid_end:]]
