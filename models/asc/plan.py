"""Which form of a model a device runs.

`load_model` and `pyasc inspect` both ask here, so the plan that is printed is the plan that runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyasc.errors import DeviceError
from pyasc.hal.base import DeviceInfo, TensorInfo
from pyasc.models.asc.manifest import GRAPH_PATH, Manifest, Part


@dataclass(frozen=True, slots=True)
class Form:
    """One form of a model in its archive: a compiled variant or the portable graph.

    Attributes:
        format: `onnx`, `tflite`, `wk`, `cambricon`.
        path: entry of the archive.
        precision: of the stored weights.
        inputs, outputs: in the manifest's order, with this form's own shape, dtype and layout.
        target: device family that it was compiled for; empty for the portable graph.
        simulated: True when it was compiled for the simulator of that family.
        parts: what runs one after the other, where that is more than the one entry.
        selftest: entry that tells whether a device computes it right; empty without one.
    """

    format: str
    path: str
    precision: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    target: str = ""
    simulated: bool = False
    parts: tuple[Part, ...] = ()
    selftest: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a device does with a model.

    Attributes:
        form: the one that it runs; None when it runs none of them.
        rejected: (path, reason) of every other form, in the manifest's order, the portable graph last.
    """

    form: Form | None
    rejected: tuple[tuple[str, str], ...]


def all_forms(manifest: Manifest) -> tuple[Form, ...]:
    """The variants in the manifest's order, then the portable graph."""
    variants = (
        Form(v.format, v.path, v.precision, v.inputs, v.outputs, v.target, v.simulated, v.parts, v.selftest)
        for v in manifest.variants
    )
    graph = Form("onnx", GRAPH_PATH, manifest.precision, manifest.inputs, manifest.outputs)
    return (*variants, graph)


def make_plan(manifest: Manifest, info: DeviceInfo, formats: tuple[str, ...], precision: object = None) -> Plan:
    """Weigh every form of a model for a device.

    A variant compiled for the device's family comes before the portable graph; of several such variants, one of the precision that
    is asked for; of these the one whose format comes first in `formats`; of these the first in the manifest.

    Args:
        manifest: of the model.
        info: of the device.
        formats: what the device loads, best first, as `Device.formats` says for the options that it is loaded with.
        precision: the device's option of this name, where it is given; whether the form has it is for `Device.load` to check.
    """
    forms = all_forms(manifest)
    against = {form.path: _reason_against(form, info, formats) for form in forms}
    usable = [form for form in forms if against[form.path] is None]
    chosen = min(
        usable,
        key=lambda form: (form.target == "", precision not in (None, form.precision), formats.index(form.format)),
        default=None,
    )
    preferred = f"{chosen.path} is preferred" if chosen else ""
    rejected = tuple((form.path, against[form.path] or preferred) for form in forms if form is not chosen)
    return Plan(chosen, rejected)


def choose_form(manifest: Manifest, info: DeviceInfo, formats: tuple[str, ...], precision: object = None) -> Form:
    """The form of a model that a device runs, by the rule of `make_plan`.

    Raises:
        DeviceError: it runs none of them; the text says why for each.
    """
    plan = make_plan(manifest, info, formats, precision)
    if plan.form is None:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in plan.rejected)
        raise DeviceError(f"{info.name} cannot run {manifest.name} ({reasons})")
    return plan.form


def _reason_against(form: Form, info: DeviceInfo, formats: tuple[str, ...]) -> str | None:
    if not info.executes:
        return "the device is listed only, this version runs nothing on it"
    if form.target and form.target != info.family:
        return f"compiled for {form.target}"
    if form.target and form.simulated != info.simulated:
        return f"compiled for the {'simulator of ' if form.simulated else ''}{form.target}, which this device is not"
    if form.format not in formats:
        return f"the device loads {' and '.join(formats) or 'nothing'}, not {form.format}"
    return None
