"""The headers against the layouts of the vendor's: sizes, offsets, values, names."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

ABI = json.loads((Path(__file__).parents[2] / "golden" / "cambricon_abi.json").read_text())
STATUS_ALIASES = {"CNRT_RET_ERR_ACCESS", "CNRT_RET_ERR_STREAM", "CNRT_RET_ERR_EVENT", "CNRT_RET_ERR_MAX"}


def check_struct(ffi: Any, name: str, layout: dict[str, Any]) -> None:
    made = ffi.typeof(name)
    assert ffi.sizeof(made) == layout["size"], name
    assert ffi.alignof(made) == layout["align"], name
    assert {field: info.offset for field, info in made.fields} == layout["fields"], name


@pytest.mark.parametrize("part", ["cnrt", "cndev"])
def test_structures_have_the_vendors_sizes_and_offsets(library: Any, part: str) -> None:
    for name, layout in ABI[part]["structs"].items():
        check_struct(library.ffi, name, layout)


def test_grown_structures_have_the_vendors_sizes_and_offsets(library: Any) -> None:
    declared = set(library.ffi.list_types()[0])
    checked = 0
    for name, years in ABI["cndev"]["later"].items():
        for year, layout in years.items():
            grown = f"{name[:-2]}_{year}_t"
            if grown in declared:
                check_struct(library.ffi, grown, layout)
                checked += 1
            else:  # it did not grow in that year
                earlier = str(int(year) - 1)
                assert layout["size"] == ABI["cndev"]["sizes"][name][earlier], grown
    assert checked == 9


@pytest.mark.parametrize("part", ["cnrt", "cndev"])
def test_enumerations_have_the_vendors_values(library: Any, part: str) -> None:
    for name, values in ABI[part]["enums"].items():
        kind = f"enum {name}" if name == "cnrt_queue_sync_type" else name
        assert dict(library.ffi.typeof(kind).relements) == values, name
        assert library.ffi.sizeof(kind) == 4


def test_handles_are_pointers_and_the_version_is_a_number(library: Any) -> None:
    for name in ("Model", "Function", "RuntimeContext", "Queue", "Notifier", "ParamDesc", "ParamDescArray"):
        assert library.ffi.sizeof(f"cnrt{name}_t") == 8
    assert library.ffi.sizeof("cnrtDev_t") == library.ffi.sizeof("MLUdev_t") == 8
    assert library.cnrt.CNRT_VERSION == 41001


@pytest.mark.parametrize(("part", "file"), [("cnrt", "libcnrt.so"), ("cndev", "libcndev.so")])
def test_libraries_have_every_name_and_no_other(libraries: Path, part: str, file: str) -> None:
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(libraries / file)], check=True, capture_output=True, text=True
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    wanted = set(ABI[part]["functions"]) | set(ABI[part].get("link_set", []))
    assert names - {"cnrtDestoryParam"} == wanted  # the misspelt one is what programs made for 4.4 ask for
    dynamic = subprocess.run(
        ["readelf", "-d", str(libraries / file)], check=True, capture_output=True, text=True
    ).stdout
    assert f"[{file}]" in dynamic


@pytest.mark.parametrize(("version", "number"), [("4.4.0", 40400), ("4.7.12", 40712), ("4.10.1", 41001)])
def test_status_codes_are_those_of_the_version(cnrt: Any, control: Any, version: str, number: int) -> None:
    control(api=number)
    told = cnrt.ffi.new("unsigned int *")
    cnrt.ok(cnrt.cnrt.cnrtGetVersion(told))
    assert told[0] == number
    for name, code in ABI["cnrt"]["statuses"][version].items():
        if name not in STATUS_ALIASES and not (number < 41000 and name == "CNRT_RET_ERR_NOTIFIER"):
            assert cnrt.name(code) == name
            assert cnrt.ffi.string(cnrt.cnrt.cnrtGetErrorStr(code))


def test_headers_compile_alone_in_c_and_in_cpp(tmp_path: Path) -> None:
    folder = Path(__file__).parents[3] / "vendors" / "cambricon"
    for header in ("cnrt.h", "cndev.h"):
        for compiler, language in (("cc", "c"), ("c++", "c++")):
            command = [compiler, "-x", language, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", str(folder / header)]
            subprocess.run(command, check=True)
