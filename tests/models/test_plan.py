"""Which form of a model a device runs."""

from __future__ import annotations

import dataclasses

import pytest

from pyasc.errors import DeviceError
from pyasc.hal.base import DeviceInfo
from pyasc.models.asc.manifest import Manifest
from pyasc.models.asc.plan import Form, choose_form, make_plan

CPU = DeviceInfo("cpu", "cpu", "cpu", "vendor", "model", "driver", ("fp32",))
MLU = DeviceInfo("mlu220:1", "mlu220", "npu", "vendor", "model", "driver", ("fp16", "int8"))
LISTED = dataclasses.replace(CPU, name="gpu0", family="opencl", kind="gpu", executes=False)


@pytest.fixture
def manifest(detector: Manifest) -> Manifest:
    """Variants for two families, two of them for the cpu."""
    cpu = detector.variants[0]
    other = dataclasses.replace(cpu, format="blob", path="variants/cpu/model.blob", precision="int8")
    mlu = dataclasses.replace(cpu, target="mlu220", format="cambricon", path="variants/mlu220/model.cambricon")
    return dataclasses.replace(detector, variants=(cpu, mlu, other))


def test_the_variant_of_the_family_comes_before_the_graph(manifest: Manifest) -> None:
    variant = manifest.variants[0]
    form = choose_form(manifest, CPU, ("onnx", "tflite"))
    assert form == Form("tflite", variant.path, "fp16", variant.inputs, variant.outputs, "cpu")
    assert choose_form(manifest, MLU, ("cambricon",)).path == "variants/mlu220/model.cambricon"


@pytest.mark.parametrize(
    ("formats", "path"),
    [
        (("tflite", "blob", "onnx"), "variants/cpu/model.tflite"),
        (("blob", "tflite", "onnx"), "variants/cpu/model.blob"),
        (("onnx", "blob"), "variants/cpu/model.blob"),
        (("onnx",), "graph.onnx"),
        (("wk", "onnx"), "graph.onnx"),
    ],
)
def test_the_devices_order_of_formats_decides(manifest: Manifest, formats: tuple[str, ...], path: str) -> None:
    assert choose_form(manifest, CPU, formats).path == path


def test_of_two_equal_variants_the_first_is_taken(manifest: Manifest) -> None:
    first = manifest.variants[0]
    second = dataclasses.replace(first, path="variants/cpu/second.tflite", precision="fp32")
    both = dataclasses.replace(manifest, variants=(second, first))
    assert choose_form(both, CPU, ("tflite",)).path == second.path


def test_the_graph_has_the_manifests_own_tensors(manifest: Manifest) -> None:
    form = choose_form(manifest, CPU, ("onnx",))
    assert (form.format, form.precision, form.target) == ("onnx", "fp16", "")
    assert (form.inputs, form.outputs) == (manifest.inputs, manifest.outputs)


def test_every_other_form_has_its_reason(manifest: Manifest) -> None:
    plan = make_plan(manifest, CPU, ("tflite", "onnx"))
    assert plan.form is not None
    assert plan.form.path == "variants/cpu/model.tflite"
    assert plan.rejected == (
        ("variants/mlu220/model.cambricon", "compiled for mlu220"),
        ("variants/cpu/model.blob", "the device loads tflite and onnx, not blob"),
        ("graph.onnx", "variants/cpu/model.tflite is preferred"),
    )


def test_a_device_that_can_run_nothing_of_it(manifest: Manifest) -> None:
    with pytest.raises(DeviceError) as caught:
        choose_form(manifest, MLU, ("offline",))
    assert str(caught.value) == (
        "mlu220:1 cannot run small (variants/cpu/model.tflite: compiled for cpu; variants/mlu220/model.cambricon: "
        "the device loads offline, not cambricon; variants/cpu/model.blob: compiled for cpu; "
        "graph.onnx: the device loads offline, not onnx)"
    )
    assert make_plan(manifest, MLU, ("offline",)).form is None


def test_a_device_that_is_only_listed(manifest: Manifest) -> None:
    with pytest.raises(DeviceError, match=r"gpu0 cannot run small .*listed only"):
        choose_form(manifest, LISTED, ("onnx",))


def test_a_device_that_loads_nothing(manifest: Manifest) -> None:
    with pytest.raises(DeviceError, match="loads nothing, not onnx"):
        choose_form(manifest, MLU, ())
