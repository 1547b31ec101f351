"""Build entry point; every fact about the package is in setup.cfg, but for the simulators' libraries, which a C compiler makes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCES = Path("vendors") / "sim"
COMPILER = os.environ.get("CC", "cc")


def can_build() -> bool:
    """Whether the simulators can be built here: they are for Linux, and need make and a C compiler."""
    return sys.platform == "linux" and all(shutil.which(tool) for tool in ("make", COMPILER.split()[0]))


class BuildWithSimulators(build_py):
    """Builds the simulators beside the Python files; without a compiler the package does without them, and says so."""

    def run(self) -> None:
        """Copy the Python files, then run make."""
        super().run()
        if not can_build():
            self.warn("no make or no C compiler: the simulators of the vendors' chips are left out")
            return
        out = Path("lib")
        if not self.editable_mode:
            out = Path(self.build_lib).resolve() / "pyasc" / SOURCES / "lib"
        subprocess.run(["make", "-C", str(SOURCES), f"OUT={out}", f"CC={COMPILER}"], check=True)


class WithSimulators(Distribution):
    """Belongs to one kind of processor where it has libraries."""

    def has_ext_modules(self) -> bool:
        """Whether there is more than Python in it."""
        return can_build()


class AnyPython(bdist_wheel):
    """A wheel for every Python: its libraries do not know of it."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI and platform of the wheel's name."""
        platform: str = super().get_tag()[2]
        return "py3", "none", platform


setup(distclass=WithSimulators, cmdclass={"build_py": BuildWithSimulators, "bdist_wheel": AnyPython})
