"""The CPU driver: its engines, its options, what it says of the processor."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from pyasc.errors import ConfigError, DeviceNotFoundError, ModelFormatError
from pyasc.hal.base import Program, TensorInfo
from pyasc.hal.drivers.cpu import CpuDevice, engine_statuses, open_device
from pyasc.hal.drivers.cpu_options import CpuOptions
from pyasc.hal.processor import parse_cpuinfo, processor

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
MakeProgram = Callable[[str, str], Program]

_USABLE = {engine.name: engine for engine in engine_statuses() if engine.version is not None}
_TFLITE = [name for name, engine in _USABLE.items() if "tflite" in engine.formats]
_THREADED = [name for name in _USABLE if name != "opencv"]  # OpenCV's threads belong to the process


@pytest.fixture(autouse=True)
def no_forced_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests choose engines themselves, also where the suite is run with one that is forced."""
    monkeypatch.delenv("PYASC_CPU_ENGINE", raising=False)


def _cpu() -> CpuDevice:
    return open_device("cpu")


def _format(engine: str) -> str:
    return _USABLE[engine].formats[0]


# --- engines


def test_each_engine_is_usable_or_says_what_to_do() -> None:
    names = [engine.name for engine in engine_statuses()]
    assert names == ["ai-edge-litert", "tflite-runtime", "onnxruntime", "opencv"]
    for engine in engine_statuses():
        assert (engine.version is None) == bool(engine.reason)
        if engine.version is None:
            assert "pip install" in engine.reason or "use ai-edge-litert" in engine.reason
    assert "opencv" in _USABLE
    assert _TFLITE


def test_versions_are_those_of_the_installed_packages() -> None:
    for name in set(_USABLE) - {"opencv"}:
        assert _USABLE[name].version == importlib.metadata.version(name)


def test_the_first_usable_engine_of_each_format_runs_it(program: MakeProgram) -> None:
    with _cpu() as device:
        assert device.formats() == ("tflite", "onnx")
        for format_ in device.formats():
            best = next(engine for engine in engine_statuses() if format_ in engine.formats and engine.version)
            assert format_ in best.used_for
            with device.load(program("relu", format_)) as executable:
                assert executable.engine == f"{best.name} {best.version}"
            assert device.telemetry()[f"engine_{format_}"] == f"{best.name} {best.version}"
            assert f"{best.name} {best.version}" in device.info.driver


@pytest.mark.parametrize("engine", _USABLE)
def test_an_engine_narrows_the_formats(engine: str) -> None:
    with _cpu() as device:
        assert device.formats(engine=engine) == _USABLE[engine].formats
        assert device.formats(engine=None, threads=1) == ("tflite", "onnx")
        with pytest.raises(ConfigError, match="engine: 'abacus' is none of"):
            device.formats(engine="abacus")


@pytest.mark.parametrize("engine", _USABLE)
def test_an_engine_can_be_asked_for(engine: str, program: MakeProgram) -> None:
    with _cpu() as device, device.load(program("relu", _format(engine)), engine=engine) as executable:
        assert executable.engine.startswith(engine)
        assert executable.run([np.array([[-1, 2, 3, 4]], np.float32)])[0].tolist() == [[0, 2, 3, 4]]


@pytest.mark.parametrize("engine", _USABLE)
def test_the_environment_forces_an_engine(engine: str, program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYASC_CPU_ENGINE", engine)
    used = {status.name: status.used_for for status in engine_statuses()}
    assert {name for name, formats in used.items() if formats} == {engine}
    with _cpu() as device:
        assert device.formats() == _USABLE[engine].formats
        with device.load(program("relu", _format(engine))) as executable:
            assert executable.engine.startswith(engine)
        other = "onnx" if _format(engine) == "tflite" else "tflite"
        with pytest.raises(ConfigError, match=f"{engine} does not run {other}"):
            device.load(program("relu", other))
        for name in set(_USABLE) - {engine}:
            with pytest.raises(ConfigError, match=f"{name} is asked for and PYASC_CPU_ENGINE forces {engine}"):
                device.load(program("relu", _format(name)), engine=name)


def test_a_forced_engine_that_cannot_be_used_is_an_error(program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    device = _cpu()
    unusable = [engine for engine in engine_statuses() if engine.version is None]
    for engine in unusable:
        with pytest.raises(ConfigError, match=f"engine: {engine.name} cannot be used: "):
            device.load(program("relu", engine.formats[0]), engine=engine.name)
        monkeypatch.setenv("PYASC_CPU_ENGINE", engine.name)
        with pytest.raises(DeviceNotFoundError, match=f"PYASC_CPU_ENGINE: {engine.name} cannot be used: "):
            open_device("cpu")
        with pytest.raises(ConfigError, match="cannot be used"):
            device.formats()
    monkeypatch.setenv("PYASC_CPU_ENGINE", "abacus")
    with pytest.raises(DeviceNotFoundError, match="'abacus' is none of ai-edge-litert"):
        open_device("cpu")


def test_tflite_runtime_with_numpy_2_is_seen_as_unusable(tmp_path: Path) -> None:
    """A package of that name whose interpreter fails as the real one does with NumPy 2: it can be imported, and not built."""
    package = tmp_path / "tflite_runtime"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "interpreter.py").write_text(
        "class OpResolverType:\n    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3\n"
        "def Interpreter(**_): raise SystemError('initialization of _pywrap failed without raising an exception')\n",
        encoding="utf-8",
    )
    code = (
        "import numpy; numpy.__version__ = '2.1.0'\n"
        "from pyasc.hal.drivers.cpu import engine_statuses\n"
        "print(next(e.reason for e in engine_statuses() if e.name == 'tflite-runtime'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert "needs numpy<2, this is 2.1.0" in said
    assert "no wheel for Python 3.12" in said


# --- options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"threads": 0}, "threads: 0 is not a whole number from 1 to 256"),
        ({"threads": 257}, "threads: 257"),
        ({"threads": True}, "threads: True"),
        ({"threads": 2.0}, "threads: 2.0"),
        ({"threads": "2"}, "threads: '2'"),
        ({"batch": 0}, "batch: 0"),
        ({"batch": 100_000}, "batch: 100000"),
        ({"engine": "abacus"}, "engine: 'abacus' is none of"),
        ({"engine": ["opencv"]}, r"engine: \['opencv'\] is none of"),
        ({"precision": "fp16"}, "weights of relu are fp32: convert the model with --precision fp16"),
        ({"precision": "bf16"}, "'bf16' is none of fp32, fp16, int8"),
        ({"use_avx2": False}, "use_avx2: AVX2 cannot be switched off"),
        ({"use_avx2": 1}, "use_avx2: 1 is neither True nor False"),
        ({"thread": 2}, "thread: unknown option .* batch, engine, precision, threads, use_avx2"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused(program: MakeProgram, options: dict[str, Any], text: str) -> None:
    with _cpu() as device, pytest.raises(ConfigError, match=text) as caught:
        device.load(program("relu", "tflite"), **options)
    assert [fault.path for fault in caught.value.faults] == list(options)


def test_all_wrong_options_are_named_together(program: MakeProgram) -> None:
    with _cpu() as device, pytest.raises(ConfigError) as caught:
        device.load(program("relu", "tflite"), threads=0, colour="red", batch=-1)
    assert {fault.path for fault in caught.value.faults} == {"threads", "colour", "batch"}


def test_the_precision_of_the_weights_is_accepted(program: MakeProgram) -> None:
    halves = dataclasses.replace(program("relu", "tflite"), precision="fp16")
    with _cpu() as device, device.load(halves, precision="fp16") as executable:
        assert executable.precision == "fp16"


def test_avx2_can_be_asserted_where_it_is(program: MakeProgram) -> None:
    has_avx2 = " avx2 " in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    with _cpu() as device:
        if has_avx2:
            device.load(program("relu", "tflite"), use_avx2=True).close()
        else:
            with pytest.raises(ConfigError, match="has no AVX2"):
                device.load(program("relu", "tflite"), use_avx2=True)


@pytest.mark.parametrize("engine", _THREADED)
def test_the_engine_computes_with_as_many_threads_as_asked(engine: str, program: MakeProgram) -> None:
    convs = program("convs", _format(engine))
    array = np.zeros(convs.inputs[0].shape, np.float32)
    more = {}
    with _cpu() as device:
        for threads in (1, 3):
            before = len(list(Path("/proc/self/task").iterdir()))
            with device.load(convs, engine=engine, threads=threads) as executable:
                executable.run([array])
                assert executable.threads == threads
                more[threads] = len(list(Path("/proc/self/task").iterdir())) - before
    assert more[3] - more[1] == 2


@pytest.mark.parametrize("engine", _USABLE)
def test_threads_when_none_are_asked_for(engine: str, program: MakeProgram) -> None:
    """All usable cores, but half of them for the one whose threads spin."""
    cores = len(os.sched_getaffinity(0))
    with _cpu() as device, device.load(program("relu", _format(engine)), engine=engine) as executable:
        assert device.info.cores == cores
        assert executable.threads == (max(1, cores // 2) if engine == "tflite-runtime" else cores)


def test_opencv_keeps_its_number_of_threads_for_others(program: MakeProgram) -> None:
    import cv2

    before = cv2.getNumThreads()
    with _cpu() as device, device.load(program("relu", "onnx"), engine="opencv", threads=before + 1) as executable:
        executable.run([np.zeros((1, 4), np.float32)])
    assert cv2.getNumThreads() == before


def test_a_program_may_end_while_its_queue_works() -> None:
    code = f"""
        import atexit, pathlib, threading
        atexit.register(lambda: print([t.name for t in threading.enumerate() if t.name.startswith("pyasc")]))
        import numpy as np
        from pyasc.hal.base import Program, TensorInfo
        from pyasc.hal.registry import open_device
        x, y = (TensorInfo(name, (1, 256, 256, 16), "float32") for name in "xy")
        data = memoryview(pathlib.Path({str(GOLDEN / "convs.tflite")!r}).read_bytes())
        device = open_device("cpu")
        executable, queue = device.load(Program("convs", "tflite", data, (x,), (y,))), device.queue()
        events = [queue.run(executable, [np.zeros(x.shape, np.float32)]) for _ in range(20)]
        print(events[-1].done)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout.splitlines()) == (0, ["False", "[]"]), ended.stderr


# --- batches


@pytest.mark.parametrize("engine", _TFLITE)
def test_a_batch_is_computed_row_by_row(engine: str, program: MakeProgram) -> None:
    rows = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    with _cpu() as device, device.load(program("relu", "tflite"), engine=engine, batch=3) as executable:
        assert executable.inputs[0].shape == executable.outputs[0].shape == (3, 4)
        np.testing.assert_array_equal(executable.run([rows])[0], np.maximum(rows, 0))
        with pytest.raises(ValueError, match="instead of"):
            executable.run([rows[:1]])


@pytest.mark.parametrize("engine", _USABLE)
def test_a_graph_that_is_fixed_to_one_row_takes_no_batch(engine: str, program: MakeProgram) -> None:
    """Its Reshape asks for one row. OpenCV reads that as one row for each of the batch, and then the result has to be right."""
    two_heads = program("two_heads", _format(engine))
    with _cpu() as device:
        if engine != "opencv":
            with pytest.raises(ConfigError, match="batch: two_heads"):
                device.load(two_heads, engine=engine, batch=2)
            return
        pictures = np.random.default_rng(0).random((2, 8, 8, 3), np.float32)
        with device.load(two_heads, engine=engine, batch=2) as executable:
            flat = executable.run([pictures, pictures])[1]
        np.testing.assert_allclose(flat, 2 * pictures.reshape(2, 192))


@pytest.mark.parametrize("engine", [name for name in _USABLE if "onnx" in _USABLE[name].formats])
def test_a_graph_that_mixes_rows_takes_no_batch(engine: str, program: MakeProgram) -> None:
    with _cpu() as device, pytest.raises(ConfigError, match="batch: mixing is no model for batches"):
        device.load(program("mixing", "onnx"), engine=engine, batch=2)


@pytest.mark.parametrize("engine", _USABLE)
def test_a_batch_of_one_is_the_model_as_it_is(engine: str, program: MakeProgram) -> None:
    with _cpu() as device, device.load(program("two_heads", _format(engine)), engine=engine, batch=1) as executable:
        assert executable.inputs[0].shape == (1, 8, 8, 3)


@pytest.mark.parametrize("engine", [name for name in _USABLE if "onnx" in _USABLE[name].formats])
def test_an_appearance_model_takes_a_batch(engine: str, demo_dir: Path) -> None:
    import onnx

    graph = onnx.load(str(demo_dir / "osnet_x0_25.onnx")).graph
    inputs = (TensorInfo(graph.input[0].name, (1, 3, 256, 128), "float32"),)
    outputs = (TensorInfo(graph.output[0].name, (1, 512), "float32"),)
    data = memoryview((demo_dir / "osnet_x0_25.onnx").read_bytes())
    osnet = Program("osnet", "onnx", data, inputs, outputs)
    if engine == "opencv" and _USABLE["opencv"].version.startswith("4."):
        # OpenCV 4 fixes the batch when it reads the graph, and says so when it gets another one.
        with _cpu() as device, pytest.raises(ConfigError, match="batch: osnet: opencv cannot run it"):
            device.load(osnet, engine=engine, batch=3)
        return
    pictures = np.random.default_rng(0).random((3, 3, 256, 128), np.float32)
    with _cpu() as device:
        with device.load(osnet, engine=engine, batch=3) as executable:
            together = executable.run([pictures])[0]
        with device.load(osnet, engine=engine) as executable:
            alone = np.concatenate([executable.run([pictures[n : n + 1]])[0] for n in range(3)])
    # Sums of some hundred float32 products in another order.
    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-3 * float(np.abs(alone).max()))


# --- real models


def _int8(shared: Path) -> Program:
    data = memoryview((shared / "weights/yolov5n_640_int8.tflite").read_bytes())
    return Program(
        "yolov5n",
        "tflite",
        data,
        (TensorInfo("input_1", (1, 640, 640, 3), "uint8", "NHWC", 0.003921568859368563, 0),),
        (TensorInfo("Identity", (1, 25200, 85), "uint8", "", 0.0044834911823272705, 3),),
        "int8",
    )


@pytest.mark.parametrize("engine", _TFLITE)
def test_a_quantised_detector_finds_what_is_in_the_picture(engine: str, shared: Path) -> None:
    import cv2

    picture = cv2.imread(str(shared / "images/bus.jpg"))
    square = np.full((1080, 1080, 3), 114, np.uint8)
    square[:, 135:945] = picture
    image = cv2.cvtColor(cv2.resize(square, (640, 640)), cv2.COLOR_BGR2RGB)[None]
    with _cpu() as device, device.load(_int8(shared), engine=engine, precision="int8") as executable:
        assert executable.precision == "int8"
        output = executable.run([np.ascontiguousarray(image)])[0]
    rows = (output[0].astype(np.float32) - 3) * 0.0044834911823272705
    scores = rows[:, 4:5] * rows[:, 5:]
    boxes = rows[:, :4] * 640
    boxes[:, :2] -= boxes[:, 2:] / 2
    found = []
    for class_id in (0, 5):  # person, bus
        kept = cv2.dnn.NMSBoxes(boxes.tolist(), scores[:, class_id].tolist(), 0.4, 0.45)
        found.append(len(kept))
    # SOURCES.md: three persons and the bus.
    assert found == [3, 1]


def test_another_scale_than_promised_is_refused(shared: Path) -> None:
    program = _int8(shared)
    for change in ({"scale": 0.5}, {"zero_point": 1}):
        wrong = dataclasses.replace(program, inputs=(dataclasses.replace(program.inputs[0], **change),))
        with _cpu() as device, pytest.raises(ModelFormatError, match=r"scale 0\.00392157 and zero point 0"):
            device.load(wrong)


@pytest.mark.parametrize("engine", [name for name in _USABLE if name != "opencv" and "onnx" in _USABLE[name].formats])
def test_a_detector_in_onnx_equals_the_reference_run(engine: str, shared: Path) -> None:
    import onnxruntime

    path = shared / "weights/yolov5n_640.onnx"
    image = np.random.default_rng(0).random((1, 3, 640, 640), np.float32)
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"images": image})
    tables = (TensorInfo("images", (1, 3, 640, 640), "float32"),), (TensorInfo("output0", (1, 25200, 85), "float32"),)
    program = Program("yolov5n", "onnx", memoryview(path.read_bytes()), *tables)
    with _cpu() as device, device.load(program, engine=engine) as executable:
        np.testing.assert_allclose(executable.run([image])[0], expected[0], rtol=1e-4, atol=1e-3)


# --- the processor


def test_the_device_is_described_as_the_kernel_does() -> None:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    with _cpu() as device:
        info = device.info
    assert (info.name, info.family, info.kind, info.link, info.simulated, info.executes) == (
        ("cpu", "cpu", "cpu", "host", False, True)
    )
    assert info.memory_bytes == psutil.virtual_memory().total
    if "model name" in text:
        assert info.model in text
    assert processor().architecture == os.uname().machine


@pytest.mark.parametrize(
    "error", [NotImplementedError("can't find current frequency file"), OSError(5, "I/O"), ValueError("x")]
)
def test_figures_that_the_kernel_does_not_give_are_not_known(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(psutil, "cpu_freq", fail)
    monkeypatch.setattr(psutil, "sensors_temperatures", fail)
    with _cpu() as device:
        figures = device.telemetry()
    assert (figures["frequency_hz"], figures["temperature_c"]) == (None, None)
    assert figures["memory_free_bytes"]


@pytest.mark.parametrize("name", ["coretemp", "zenpower", "soc_thermal", "soc-thermal", "vendors_own"])
def test_the_hottest_sensor_of_the_processor_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sensors = {"acpitz": [20.0], name: [51.04, 63.06]} if name != "vendors_own" else {name: [51.04, 63.06]}
    readings = {key: [SimpleNamespace(current=value) for value in values] for key, values in sensors.items()}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: readings)
    with _cpu() as device:
        assert device.telemetry()["temperature_c"] == 63.1


def test_an_intel_processor_is_read() -> None:
    text = (
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Core(TM) i5\nflags\t\t: fpu sse avx2\n\n" * 2
    )
    found = parse_cpuinfo(text, "x86_64")
    assert (found.vendor, found.model, found.architecture) == ("GenuineIntel", "Intel(R) Core(TM) i5", "x86_64")
    assert "avx2" in found.features


def test_a_hi3559a_with_two_kinds_of_cores_is_read() -> None:
    core = "processor\t: {}\nFeatures\t: fp asimd crc32\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"
    found = parse_cpuinfo(core.format(0, "0xd03") + core.format(1, "0xd03") + core.format(2, "0xd09"), "aarch64")
    assert (found.vendor, found.model) == ("Arm", "Cortex-A53 + Cortex-A73")
    assert found.features == {"fp", "asimd", "crc32"}


@pytest.mark.parametrize("text", ["", "nonsense", "CPU implementer: zz\nCPU part: 0xfff\n", ":::\n:\n"])
def test_a_processor_that_nobody_knows_is_no_error(text: str) -> None:
    found = parse_cpuinfo(text, "riscv64")
    assert found.vendor
    assert found.model


def test_the_page_on_devices_has_the_options_and_engines_of_the_driver() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    section = page.partition("## Options of the CPU")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE)
    assert {name for name, _ in rows} == {field.name for field in dataclasses.fields(CpuOptions)}
    assert dict(rows)["engine"] == ", ".join(f"`{engine.name}`" for engine in engine_statuses())
    text = importlib.import_module("pyasc.hal.drivers.cpu").__doc__ or ""
    assert {name for name, _ in rows} == set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
