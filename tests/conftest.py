"""What all tests share: where the reference data is."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of the reference data on a machine that has only the repository; nothing else is ever skipped."""
    if SHARED.is_dir():
        return
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker(
                pytest.mark.skip(reason=f"needs the reference data in {SHARED}, which is not on this machine")
            )


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference weights, pictures, clips and expected results."""
    return SHARED


@pytest.fixture(scope="session")
def demo_dir() -> Path:
    """The shipped demo data."""
    return ROOT / "demo"
