"""A program in C for CNRT, built and run against the simulator, and its numbers against ONNX's evaluator."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyasc.models.npu.cambricon import write_cambricon

HERE = Path(__file__).parent


def build_program(folder: Path, to: Path, *flags: str, source: str = "program") -> Path:
    """A program of this folder, linked to the libraries in `folder`."""
    program = to / source
    command = ["cc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags]
    command += [f"-I{HERE.parents[2]}/vendors/cambricon", str(HERE / f"{source}.c"), "-o", str(program)]
    command += [f"-L{folder}", "-lcnrt", "-lpyascsim", "-lpthread", f"-Wl,-rpath,{folder}"]
    subprocess.run(command, check=True)
    return program


@pytest.fixture(scope="session")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_program(libraries, tmp_path_factory.mktemp("program"))


def run_program(program: Path, folder: Path, model: bytes, data: NDArray[Any], threads: int = 1) -> dict[str, str]:
    """What it printed, by the first word of the line; its outputs are in folder / "output"."""
    (folder / "model.cambricon").write_bytes(model)
    (folder / "input").write_bytes(data.tobytes())
    files = [str(folder / name) for name in ("model.cambricon", "input", "output")]
    done = subprocess.run([str(program), *files, str(threads)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("number", ["int8", "int16", "float16"])
def test_numbers_are_those_of_the_graph_with_the_same_rounding(
    small: Any, program: Path, tmp_path: Path, number: str
) -> None:
    built = small.build(number)
    data = small.pictures[0].transpose(1, 2, 0)
    told = run_program(program, tmp_path, write_cambricon([built.function]), data, threads=4)
    assert told["outstanding"].split() == ["0"] * 8
    found = np.fromfile(tmp_path / "output", np.float32)
    rounded = np.concatenate([value.ravel() for value in small.rounded(built, number)[0]])
    exact = np.concatenate([value.ravel() for value in small.expected[0]])
    steps = np.concatenate(
        [
            np.full(np.prod(shape), built.compiled.tensors[name].scale)
            for name, shape in zip(("map", "score"), built.outputs, strict=True)
        ]
    )
    # A sum in another order may fall on the other side of a half: one step of the result, with half precision none was seen.
    allowed = 2e-3 if number == "float16" else 1.01 * steps
    assert (np.abs(found - rounded) <= allowed).all()
    # Of the values themselves, of about 1: eight bits lose a hundredth, eleven and sixteen a thousandth.
    assert np.abs(found - exact).max() < {"int8": 0.03, "int16": 3e-4, "float16": 3e-3}[number]


def test_outputs_in_half_precision_are_the_same_numbers_rounded(small: Any, program: Path, tmp_path: Path) -> None:
    data = small.pictures[0].transpose(1, 2, 0)
    found = {}
    for dtype in ("float32", "float16"):
        run_program(program, tmp_path, write_cambricon([small.build("int8", output_dtype=dtype).function]), data)
        found[dtype] = np.fromfile(tmp_path / "output", np.float32)
    assert (found["float32"].astype(np.float16) == found["float16"].astype(np.float16)).all()
    assert (found["float16"] == found["float16"].astype(np.float16)).all()


@pytest.mark.parametrize("cores", [1, 4])
def test_four_threads_get_the_same_numbers(small: Any, program: Path, tmp_path: Path, cores: int) -> None:
    model = write_cambricon([small.build("int8").function], cores=cores)
    told = run_program(program, tmp_path, model, small.pictures[1].transpose(1, 2, 0), threads=4)
    assert told["cores"].startswith(f"{cores} inputs 1 outputs 2")
    assert float(told["microseconds"]) > 0


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The libraries with AddressSanitizer and UndefinedBehaviorSanitizer."""
    folder = tmp_path_factory.mktemp("sanitized")
    flags = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
    targets = [str(folder / name) for name in ("libcnrt.so", "libcndev.so")]
    make = ["make", "-s", "-C", str(HERE.parents[2] / "vendors" / "sim"), f"OUT={folder}", f"CFLAGS={flags}", *targets]
    subprocess.run(make, check=True, timeout=280)
    return folder


SANITIZE = ("-fsanitize=address,undefined",)


@pytest.mark.parametrize("number", ["int8", "int16", "float16"])
def test_program_is_clean_under_sanitizers(small: Any, sanitized: Path, tmp_path: Path, number: str) -> None:
    program = build_program(sanitized, tmp_path, *SANITIZE)
    model = write_cambricon([small.build(number, batches=(1,)).function])
    told = run_program(program, tmp_path, model, small.pictures[0].transpose(1, 2, 0), threads=2)
    assert told["outstanding"].split() == ["0"] * 8


def test_hostile_model_files_do_no_harm(small: Any, sanitized: Path, tmp_path: Path) -> None:
    fuzz = build_program(sanitized, tmp_path, *SANITIZE, source="fuzz")
    for number in ("int8", "float16"):
        function = small.build(number, pixel=(4, 2, -1), batches=(1, 2)).function
        (tmp_path / "seed").write_bytes(write_cambricon([function]))
        done = subprocess.run(
            [str(fuzz), str(tmp_path / "seed"), str(tmp_path / "mutant"), "400"],
            capture_output=True,
            text=True,
            timeout=200,
            env={"PYASC_SIM_QUIET": "1", "PYASC_SIM": "mlu220.memory_mib=64"},
        )
        assert done.returncode == 0, done.stderr[-3000:]
        refused, ran = (int(word) for word in done.stdout.split())
        assert refused > 100
        assert ran > 10


def test_threads_that_share_queues_and_notifiers_are_clean(small: Any, sanitized: Path, tmp_path: Path) -> None:
    stress = build_program(sanitized, tmp_path, *SANITIZE, source="stress")
    (tmp_path / "model").write_bytes(write_cambricon([small.build("int8").function]))
    command = [str(stress), str(tmp_path / "model"), "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env={"PYASC_SIM_QUIET": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["0"] * 8
