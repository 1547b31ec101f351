"""What numbers the values of a graph take on typical pictures, and the range that represents them best in a few bits.

Methods: `minmax` keeps the largest magnitude; `percentile` the one below which 99.99 % of the numbers lie; `entropy` the range
whose quantised histogram loses the least information (divergence of Kullback and Leibler; Migacz, "8-bit inference with TensorRT",
GTC 2017, where the first bin, of numbers that every range makes zero, does not count either); `mse` the range with the smallest
mean squared error of rounding and clipping together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import numpy as np
import onnx
from numpy.typing import NDArray

from pyasc.errors import ConversionError

Method = Literal["minmax", "percentile", "entropy", "mse"]
METHODS: tuple[str, ...] = get_args(Method)

_BINS = 2048
_PERCENTILE = 99.99


class Statistics:
    """Histograms of the magnitudes of values; the range of a histogram doubles when a number lies beyond it."""

    def __init__(self) -> None:
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._limits: dict[str, float] = {}

    def add(self, name: str, values: NDArray[np.floating]) -> None:
        """Count the numbers of one value.

        Raises:
            ConversionError: one is not finite.
        """
        magnitudes = np.abs(values.ravel())
        largest = float(magnitudes.max(initial=0.0))
        if not np.isfinite(largest):
            raise ConversionError(f"the value '{name}' is not finite on a calibration picture")
        if name not in self._counts:
            self._counts[name] = np.zeros(_BINS, np.int64)
            self._limits[name] = max(largest, 1e-6)
        while self._limits[name] < largest:
            self._counts[name] = np.append(self._counts[name].reshape(-1, 2).sum(1), np.zeros(_BINS // 2, np.int64))
            self._limits[name] *= 2
        self._counts[name] += np.histogram(magnitudes, _BINS, (0.0, self._limits[name]))[0]

    def __contains__(self, name: str) -> bool:
        return name in self._counts

    def limit(self, name: str, method: Method, levels: int) -> float:
        """The largest magnitude that is represented; greater ones are cut to it.

        Args:
            name: of the value.
            method: see the head of this module.
            levels: positive numbers that are stored, 127 or 32767.
        """
        counts, width = self._counts[name], self._limits[name] / _BINS
        filled = np.flatnonzero(counts)
        top = int(filled[-1]) + 1 if filled.size else 1
        if method == "minmax" or levels > _BINS:
            return top * width
        if method == "percentile":
            share = np.cumsum(counts) / max(int(counts.sum()), 1)
            return (int(np.searchsorted(share, _PERCENTILE / 100)) + 1) * width
        rate = _squared_error
        if method == "entropy":
            rate, counts = _divergence, np.append(counts[1:2], counts[1:])
        candidates = range(min(levels + 1, top), top + 1, max(1, top // 128))
        return min(candidates, key=lambda bins: rate(counts, bins, levels)) * width


def _divergence(counts: NDArray[np.int64], bins: int, levels: int) -> float:
    """Of the histogram cut to `bins`, from the same one with `levels` steps."""
    kept = counts[:bins].astype(np.float64)
    reference = kept.copy()
    reference[-1] += counts[bins:].sum()
    step = np.minimum(np.arange(bins) * levels // bins, levels - 1)
    totals = np.bincount(step, kept, levels)
    filled = np.bincount(step, kept > 0, levels)
    spread = np.where(kept > 0, (totals / np.maximum(filled, 1))[step], 0)
    if not spread.sum():
        return np.inf
    p, q = reference / reference.sum(), spread / spread.sum()
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / np.maximum(q[seen], 1e-12))).sum())


def _squared_error(counts: NDArray[np.int64], bins: int, levels: int) -> float:
    """Of rounding to steps of bins / levels, and of cutting at `bins`; in bins squared."""
    rounding = (bins / levels) ** 2 / 12 * float(counts[:bins].sum())
    beyond = np.arange(bins, len(counts)) + 0.5 - bins
    return rounding + float((counts[bins:] * beyond**2).sum())


def observe(
    model: onnx.ModelProto, values: Iterable[str], pictures: Iterable[Mapping[str, NDArray[np.float32]]]
) -> Statistics:
    """Run a graph on pictures and count what the named values become; inputs of the graph may be among them.

    Args:
        model: float32 at run time.
        values: names of what shall be counted.
        pictures: the graph's inputs by name, for each picture.
    Raises:
        ConversionError: ONNX Runtime is missing or refuses the graph, there is no picture, or a value is not finite.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ConversionError("calibration needs onnxruntime: pip install 'pyasc[convert]'") from error
    inputs = {entry.name for entry in model.graph.input}
    wanted = sorted(set(values) - inputs)
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    have = {entry.name for entry in whole.graph.output}
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in have)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(whole.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes have no common base that is public
        raise ConversionError(f"ONNX Runtime refuses the graph: {' '.join(str(error).split())[:200]}") from error
    statistics, count = Statistics(), 0
    for picture in pictures:
        for name in inputs & set(values):
            statistics.add(name, picture[name])
        for name, value in zip(wanted, session.run(wanted, dict(picture)), strict=True):
            statistics.add(name, value)
        count += 1
    if not count:
        raise ConversionError("there is no picture to calibrate with")
    return statistics
