"""Random damage: to bytes, to JSON, to tensors, and strings that ought to harm somebody."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np

STRINGS = (
    "",
    " ",
    ".",
    "..",
    "../../x",
    "/etc/passwd",
    "a/b",
    "\x1b[2J\x1b]0;title\x07",
    "\r\n\t\x00",
    "\x9b31m",
    "\u202egnp.exe",
    "\ud83d\ude00",
    "\udcff",
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raw %}",
    "[bold]markup[/bold]",
    "$x^{2",
    "%s%n",
    "x" * 300,
    "é" * 200,
    "nan",
    "-1",
    "1e999",
    "NaN",
    "null",
    "RelRNN",
    "copy",
    "system:henon",
    "best",
    "--help",
)
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 100, -0.0, 0.5, 1e-9, 5e-324, 1.7e308, -1.7e308, 1.6e307, 1e300),
    *(2**31, 2**63 - 1, 2**63, 10**18, 10**19, 10**30, 10**310),
)


def scalar(rng: random.Random) -> Any:
    """A value of any type that JSON has."""
    kind = rng.randrange(8)
    if kind == 0:
        return None
    if kind == 1:
        return rng.random() < 0.5
    if kind < 5:
        return rng.choice(NUMBERS)
    return rng.choice(STRINGS)


def value(rng: random.Random, depth: int = 2) -> Any:
    """A value of any type, also nested."""
    kind = rng.randrange(6)
    if depth and kind == 0:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if depth and kind == 1:
        return {str(rng.choice(STRINGS)): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    return scalar(rng)


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes that were cut, flipped, doubled, overwritten or replaced."""
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(8)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
    if kind == 2:
        return data[:at] + data[at + rng.randrange(1, 20) :]
    if kind == 3:
        return data[:at] + data[max(at - 50, 0) :]
    if kind == 4:
        return rng.choice([b"", b"\0", b"null", b"[]", b"{}", b'"x"', b"[" * 5000, b"\xff\xfe{\x00}\x00", b"1" * 400])
    flipped = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 5, 50])):
        if flipped:
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def damaged_json(rng: random.Random, data: bytes) -> bytes:
    """A JSON document in which one or a few values, names or lengths were changed; at times the bytes themselves."""
    if rng.random() < 0.2:
        return damaged_bytes(rng, data)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # it is damaged already
        return damaged_bytes(rng, data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        document = _changed(rng, document)
    text = json.dumps(document)
    if rng.random() < 0.1:  # numbers that json.dumps does not write
        text = text.replace("1", rng.choice(["1e400", "-Infinity", "NaN", "1" * 310, "1.0"]), 1)
    return text.encode()


def _changed(rng: random.Random, node: Any) -> Any:
    """Change something below `node`, at a random depth."""
    if not isinstance(node, dict | list) or not node or rng.random() < 0.1:
        return value(rng)
    if isinstance(node, list):
        i = rng.randrange(len(node))
        edits: list[Callable[[], Any]] = [
            lambda: [*node[:i], *node[i + 1 :]],
            lambda: [*node, node[i]],
            lambda: [*node[:i], _changed(rng, node[i]), *node[i + 1 :]],
        ]
        return rng.choice([*edits, edits[2], edits[2]])()
    name = rng.choice(list(node))
    kind = rng.randrange(8)
    if kind == 0:
        return {key: item for key, item in node.items() if key != name}
    if kind == 1:
        return {**node, rng.choice(STRINGS): value(rng)}
    return {**node, name: _changed(rng, node[name])}


DTYPES = ("float64", "float64", "float32", "float16", "int64", "int8", "uint64", "bool")


def array(rng: random.Random) -> np.ndarray:
    """An array of any shape and type, with values at the ends of its range."""
    shape = rng.choice([(), (0,), (1,), (2,), (5,), (7,), (0, 3), (2, 5), (5, 5), (5, 2), (2, 3, 4)])
    generator = np.random.default_rng(rng.randrange(2**32))
    values = generator.standard_normal(shape) * rng.choice([0.0, 1e-320, 1.0, 1e6, 1e307])
    dtype = rng.choice(DTYPES)
    with np.errstate(all="ignore"):
        result = np.array(values).astype(dtype)
    if result.size and dtype.startswith("float"):
        for _ in range(rng.randrange(3)):
            with np.errstate(all="ignore"):
                result.flat[rng.randrange(result.size)] = rng.choice([np.nan, np.inf, -np.inf, 1.7e308, -1.7e308, 0.0])
    return result
