"""The one part that needs a compiler: the CPU's fused loops, once for each instruction set; optional, all of it."""

from __future__ import annotations

import os
import platform
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = os.path.join("src", "mnemoscope", "kernels", "csrc", "cpu")
SOURCES = sorted(glob(os.path.join(FOLDER, "*.cpp")))
HEADERS = sorted(glob(os.path.join(FOLDER, "*.h")))
X86 = platform.machine().lower() in {"x86_64", "amd64", "i686", "x86"}

# -ffp-contract lets a * b + c be one instruction. -ffast-math is never used: its start-up code would change how the
# whole process rounds.
GNU = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
INSTRUCTION_SETS = {
    "generic": ([], []),
    "avx2": (["-mavx2", "-mfma"], ["/arch:AVX2"]),
    "avx512": (
        ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mprefer-vector-width=512"],
        ["/arch:AVX512"],
    ),
}


class Build(build_ext):
    """Builds what can be built: a machine without a C++ compiler gets a library that runs on torch's operations."""

    def run(self) -> None:
        self.missing: dict[str, str] = {}
        super().run()
        if self.missing:
            names, reason = ", ".join(self.missing), next(iter(self.missing.values()))
            print(f"mnemoscope: no CPU kernels for {names} ({reason}); layers use torch's operations", file=sys.stderr)

    def build_extension(self, ext: Extension) -> None:
        name = ext.name.rpartition("_")[2]
        gnu, microsoft = INSTRUCTION_SETS[name]
        is_microsoft = self.compiler.compiler_type == "msvc"
        ext.extra_compile_args = ["/std:c++17", "/O2", *microsoft] if is_microsoft else [*GNU, *gnu]
        ext.extra_link_args = [] if is_microsoft else ["-g0", "-pthread"]
        shared, self.build_temp = self.build_temp, os.path.join(self.build_temp, name)  # the same sources, other flags
        try:
            super().build_extension(ext)
        except Exception as error:
            self.missing[name] = str(error).splitlines()[0]
        finally:
            self.build_temp = shared

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # a plain C library, loaded by ctypes: there is no module to initialize


def extensions() -> list[Extension]:
    names = list(INSTRUCTION_SETS) if X86 else ["generic"]
    return [
        Extension(f"mnemoscope.kernels._cpu._{name}", SOURCES, depends=HEADERS, language="c++", optional=True)
        for name in names
    ]


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
