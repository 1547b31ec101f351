"""Status codes of CNRT 4. Some numbers changed with 4.10, so a number has a name only together with the library's version."""

from __future__ import annotations

from collections.abc import Mapping

from pyasc.errors import DeviceBusyError, DeviceError, DeviceLostError, DeviceMemoryError, DeviceTimeoutError

_RENUMBERED = 41000
_PREFIX = "CNRT_RET_ERR_"
# Numbers before 4.10; None: not there before 4.10. Two that share a number were told apart only later.
_BEFORE: Mapping[str, int | None] = {
    "IO": 632010,
    "TIMEOUT": 632015,
    "EXIST": 632016,
    "NOSYS": 632017,
    "AGAIN": 632018,
    "MATH_OVERFLOW": 632027,
    "MLU": 632032,
    "ONCHIP_CORE": 632033,
    "EVENT": 632034,
    "NOTIFIER": 632034,
    "GET_MEM_RANGE": 632044,
    "GET_MEM_INFO": 632045,
    "CNDRV_FUNC_CALL": None,
    "CNDEV_FUNC_CALL": None,
    "GET_IMP_DEV": None,
    "LOAD_MODULE": None,
}
_SINCE_4_7 = ("GET_MEM_RANGE", "GET_MEM_INFO")
_KINDS: Mapping[str, type[DeviceError]] = {
    "TIMEOUT": DeviceTimeoutError,
    "NOMEM": DeviceMemoryError,
    "BUSY": DeviceBusyError,
    "AGAIN": DeviceBusyError,
    "NODEV": DeviceLostError,
}


def numbers(version: int, newest: Mapping[str, int]) -> dict[str, int]:
    """The status codes of one version by name.

    Args:
        version: as `cnrtGetVersion` tells it: 41001 is 4.10.1.
        newest: names and numbers of 4.10.
    """
    if version >= _RENUMBERED:
        return dict(newest)
    known = dict(newest)
    for short, number in _BEFORE.items():
        if number is None or (short in _SINCE_4_7 and version < 40700):
            del known[_PREFIX + short]
        else:
            known[_PREFIX + short] = number
    return known


class Statuses:
    """The status codes of one version.

    Args:
        version, newest: as for `numbers`.
    """

    def __init__(self, version: int, newest: Mapping[str, int]) -> None:
        self.numbers = numbers(version, newest)
        self._names: dict[int, str] = {}
        for name, number in self.numbers.items():
            self._names.setdefault(number, name)

    def name(self, number: int) -> str:
        """Name of a status code."""
        return self._names.get(number, "a status that this version does not have")

    def error(self, number: int, what: str) -> DeviceError:
        """The exception for a failed call, which keeps the number as `code`.

        Args:
            number: that the call returned.
            what: who called what, and where there is something to say about it, why.
        """
        name = self.name(number)
        kind = _KINDS.get(name.removeprefix(_PREFIX), DeviceError)
        return kind(f"{what} failed: {name} ({number})", number)
