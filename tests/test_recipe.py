"""CONTRIBUTING.md followed word by word in a copy of the source: a layer with kernels for the CPU and for CUDA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()
COMPILER = os.environ.get("CXX", "c++")
WHICH_KERNEL = """
import torch
from mnemoscope import LeakyRNN
from mnemoscope.layers._run import _choose_kernel
print(_choose_kernel(LeakyRNN(2, 3), torch.ones(2, 1, 2)))
"""


def code_block(language: str, containing: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", RECIPES, re.DOTALL | re.MULTILINE)
    (found,) = [block for block in blocks if containing in block]
    return found


def insert(path: Path, before: str, text: str) -> None:
    """Put `text` before the first occurrence of `before`."""
    source = path.read_text()
    assert before in source, f"{path} has no {before!r}"
    path.write_text(source.replace(before, text + before, 1))


def add_the_layer(copy: Path) -> None:
    """The five places of a layer, with the two methods that a kernel needs."""
    recipe = code_block("python", "class LeakyRNN")
    layer = recipe[: recipe.index("\noutput, h = ")].replace(
        "from mnemoscope.layers import Layer, Weights\n",
        "from mnemoscope import kernels\n"
        "from mnemoscope.layers._base import Layer\n"
        "from mnemoscope.layers._leaky_kernel import leaky\n"
        "from mnemoscope.layers._run import KernelChoice, KernelSpec\n"
        "from mnemoscope.layers._weights import Weights\n",
    )
    layer = layer.rstrip() + "\n\n" + indent(code_block("py", "def kernel_spec"), "    ")
    (copy / "src/mnemoscope/layers/_leaky.py").write_text(layer)
    catalog = copy / "src/mnemoscope/layers/catalog.py"
    insert(catalog, "\n# ", "from mnemoscope.layers._leaky import LeakyRNN\n")
    insert(catalog, '    "RAC",\n', '    "LeakyRNN",\n')
    insert(copy / "tests/layers/table.py", "    Row(mnemoscope.RAC", "    Row(mnemoscope.LeakyRNN, dict(leak=0.3)),\n")
    insert(
        copy / "docs/api/layers.md",
        "::: mnemoscope.layers.RAC",
        "::: mnemoscope.layers.LeakyRNN\n    options: { members: false }\n",
    )
    insert(copy / "docs/layers.md", "| `RAC`", "| `LeakyRNN` | h = (1 - a) h + a tanh(V h + U x + b) | `leak` | |\n")


def add_the_kernel(copy: Path) -> None:
    """The three places of a kernel, and its build for the CPU."""
    kernels = copy / "src/mnemoscope/kernels"
    (kernels / "csrc/cpu/leaky.cpp").write_text(code_block("cpp", "leaky.cpp"))
    insert(kernels / "csrc/cuda/cells.cuh", "using Cell = CELL;", code_block("cuda", "struct Leaky") + "\n")
    (copy / "src/mnemoscope/layers/_leaky_kernel.py").write_text(code_block("py", "_leaky_kernel.py"))
    for build in (kernels / "_cpu").glob("*.so"):
        build.unlink()
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-pthread", "-march=native", f"-I{kernels}/csrc"]
    sources = map(str, (kernels / "csrc/cpu").glob("*.cpp"))
    subprocess.run([COMPILER, *flags, *sources, "-o", str(kernels / "_cpu/_generic.so")], check=True)


def sources(copy: Path) -> dict[Path, bytes]:
    """The files of the source, tests and documentation, and what is in them."""
    suffixes = (".py", ".cpp", ".h", ".cu", ".cuh", ".md")
    return {path: path.read_bytes() for path in copy.rglob("*") if path.suffix in suffixes}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="no C++ compiler")
def test_a_layer_with_a_kernel_added_by_the_recipe_passes_its_checks(tmp_path) -> None:
    copy = tmp_path / "mnemoscope"
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "runs", "__pycache__", ".*_cache", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=ignored)
    before = sources(copy).items()
    add_the_layer(copy)
    assert len(sources(copy).items() - before) == 5
    add_the_kernel(copy)
    assert len(sources(copy).items() - before) == 5 + 3

    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "MNEMOSCOPE_CPU_KERNELS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    checks = [
        "tests/layers",
        "tests/kernels/test_c_boundary.py",
        "tests/kernels/test_fused_layers.py",
        "tests/kernels/test_cuda_emulated_cells.py",
        "tests/test_docs.py",
    ]
    chosen = "LeakyRNN or leaky or both_sides"
    done = subprocess.run([*command, *checks, "-k", chosen], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
    shown = subprocess.run([sys.executable, "-c", WHICH_KERNEL], env=environment, capture_output=True, text=True)
    assert "compiled=True" in shown.stdout, shown.stderr
