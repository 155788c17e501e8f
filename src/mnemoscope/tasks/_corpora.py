"""Text as numbers: the corpora of the papers and a user's own file, encoded once and kept in memory."""

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
from mnemoscope.tasks._archives import MOST, contents
from mnemoscope.tasks._data import read

END, UNKNOWN = "<eos>", "<unk>"
Text = TypeVar("Text", str, list[str])


class Corpus(NamedTuple):
    """Three texts as int32 places in `symbols`."""

    symbols: tuple[str, ...]
    train: Tensor
    valid: Tensor
    test: Tensor


@lru_cache(maxsize=4)
def characters(data: str) -> Corpus:
    """ "ptb" or a file's path; the alphabet is that of all three texts, in the order of Unicode."""
    if data == "ptb":
        # Every second byte is the space that Mikolov's format sets between characters; "_" is a real space.
        raw = (read(f"ptb-char/ptb.char.{split}.txt.gz")[::2] for split in ("train", "valid", "test"))
        texts = [text.decode("ascii").replace("_", " ") for text in raw]
    else:
        texts = _parts(_own_text(data, "'ptb'"))
    codes = [np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) for text in texts]
    alphabet = np.unique(np.concatenate([np.unique(code) for code in codes]))
    encoded = (torch.from_numpy(np.searchsorted(alphabet, code).astype(np.int32)) for code in codes)
    return Corpus(tuple(map(chr, alphabet.tolist())), *encoded)


@lru_cache(maxsize=4)
def words(data: str, vocabulary: int = 0) -> Corpus:
    """ "wikitext-2", "ptb" or a file's path; words stand between white space and <eos> ends every line.

    The vocabulary is that of the training text, most frequent first, with <unk> for the words of the others.
    """
    texts = _word_texts(data)
    counted = [word for word, _ in Counter(texts[0]).most_common(vocabulary or None)]
    symbols = counted if UNKNOWN in counted else [*counted, UNKNOWN]
    place = {word: number for number, word in enumerate(symbols)}
    coded = (np.fromiter(map(place.get, text, repeat(place[UNKNOWN])), np.int32, len(text)) for text in texts)
    encoded = (torch.from_numpy(code) for code in coded)
    return Corpus(tuple(symbols), *encoded)


def _word_texts(data: str) -> list[list[str]]:
    folder = {"wikitext-2": "wikitext-2/", "ptb": "ptb/ptb."}.get(data)
    if folder is None:
        return _parts(_split(_own_text(data, "'wikitext-2', 'ptb'")))
    return [_split(read(f"{folder}{split}.txt.gz").decode()) for split in ("train", "valid", "test")]


def _split(text: str) -> list[str]:
    lines = text if text.endswith("\n") else text + "\n"
    return lines.replace("\n", f" {END} ").split()


def _own_text(path: str, known: str) -> str:
    if not Path(path).is_file():
        raise MnemoscopeError(f"data = {path!r} is not a file; allowed are {known} or the path of a text file")
    try:
        text = contents(Path(path), MOST).decode()
    except UnicodeDecodeError as error:
        raise MnemoscopeError(f"{path} is not UTF-8 text: byte {error.start} cannot be read") from None
    if len(text) < 100:
        raise MnemoscopeError(f"{path} has {len(text)} characters; a text needs at least 100 to be split in three")
    return text


def _parts(text: Text) -> list[Text]:
    """The first nine tenths to train on, and a twentieth each for validation and test."""
    train, valid = len(text) * 90 // 100, len(text) * 95 // 100
    return [text[:train], text[train:valid], text[valid:]]
