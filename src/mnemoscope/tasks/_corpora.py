"""Text as integers: the papers' corpora or a file of the user's, encoded once and kept in memory."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from mnemoscope.errors import MnemoscopeError
from mnemoscope.tasks._archives import MAX_UNPACKED, read_file
from mnemoscope.tasks._data import read_data_file

END = "<eos>"
UNKNOWN = "<unk>"
Text = TypeVar("Text", str, list[str])


class Corpus(NamedTuple):
    """Three texts as int32 indices into `symbols`."""

    symbols: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor


@lru_cache(maxsize=4)
def characters(data: str) -> Corpus:
    """Return the characters of "ptb" or of a file. The alphabet is that of all three texts, in Unicode order."""
    if data == "ptb":
        # Every second byte is the space that Mikolov's format sets between characters; "_" is a real space.
        raw = (read_data_file(f"ptb-char/ptb.char.{split}.txt.gz")[::2] for split in ("train", "valid", "test"))
        texts = [text.decode("ascii").replace("_", " ") for text in raw]
    else:
        texts = _split_in_three(_user_text(data, "'ptb'"))
    codes = [np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) for text in texts]
    alphabet = np.unique(np.concatenate([np.unique(code) for code in codes]))
    encoded = (torch.from_numpy(np.searchsorted(alphabet, code).astype(np.int32)) for code in codes)
    return Corpus(tuple(map(chr, alphabet.tolist())), *encoded)


@lru_cache(maxsize=4)
def words(data: str, vocabulary: int = 0) -> Corpus:
    """Return the words of "wikitext-2", "ptb" or a file. White space separates words; <eos> ends every line.

    The vocabulary is that of the training text, most frequent first. Other words become <unk>.
    """
    texts = _word_texts(data)
    symbols = [word for word, _ in Counter(texts[0]).most_common(vocabulary or None)]
    if UNKNOWN not in symbols:
        symbols.append(UNKNOWN)
    index = {word: number for number, word in enumerate(symbols)}

    def encode(text: list[str]) -> Tensor:
        return torch.from_numpy(np.fromiter(map(index.get, text, repeat(index[UNKNOWN])), np.int32, len(text)))

    return Corpus(tuple(symbols), *map(encode, texts))


def _word_texts(data: str) -> list[list[str]]:
    folder = {"wikitext-2": "wikitext-2/", "ptb": "ptb/ptb."}.get(data)
    if folder is None:
        return _split_in_three(_tokenize(_user_text(data, "'wikitext-2', 'ptb'")))
    return [_tokenize(read_data_file(f"{folder}{split}.txt.gz").decode()) for split in ("train", "valid", "test")]


def _tokenize(text: str) -> list[str]:
    lines = text if text.endswith("\n") else text + "\n"
    return lines.replace("\n", f" {END} ").split()


def _user_text(path: str, known: str) -> str:
    if not Path(path).is_file():
        raise MnemoscopeError(f"data = {path!r} is not a file; allowed are {known} or the path of a text file")
    try:
        text = read_file(Path(path), MAX_UNPACKED).decode()
    except UnicodeDecodeError as error:
        raise MnemoscopeError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None
    if len(text) < 100:
        raise MnemoscopeError(f"{path} has {len(text)} characters; a text needs at least 100 to be split in three")
    return text


def _split_in_three(text: Text) -> list[Text]:
    """The first nine tenths to train on, and a twentieth each for validation and test."""
    train_end = len(text) * 90 // 100
    valid_end = len(text) * 95 // 100
    return [text[:train_end], text[train_end:valid_end], text[valid_end:]]
