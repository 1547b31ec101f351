"""Where pictures come from: video files, folders and single pictures, cameras, RTSP and HTTP, each as a `Reader`.

Everything here blocks: a stream calls it from a thread of its own. Video goes through OpenCV's FFmpeg backend, cameras through
V4L2.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import math
import os
import re
import socket
import stat
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# FFmpeg prints each oddity of a stream, addresses with passwords among them; what matters is reported as an error.
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")

import cv2
import numpy as np
from numpy.typing import NDArray

from pyasc.agent.masking import mask
from pyasc.errors import StreamError
from pyasc.models.image import MAX_PIXELS, as_bgr, read_image

_log = logging.getLogger(__name__)

Transport = Literal["tcp", "udp"]
Kind = Literal["file", "folder", "camera", "network"]

PICTURE_SUFFIXES = frozenset(
    (".bmp", ".jpeg", ".jpg", ".jpe", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tif", ".tiff", ".webp")
)
# FFmpeg draws files that are named so as text on a screen of the nineties, whatever they hold, as if that were a video.
_TEXT_SUFFIXES = frozenset(
    (".adf", ".ans", ".art", ".asc", ".bin", ".diz", ".ice", ".idf", ".nfo", ".txt", ".vt", ".xb")
)
# Pictures have no times: a folder plays at this rate.
FOLDER_FPS = 25.0
# Above this a frame rate is a time base that FFmpeg could not make sense of (90000 for some RTSP cameras).
MAX_FPS = 1000.0
# Frames in a row without a picture after which a source is given up.
_MAX_EMPTY = 100
_OPTIONS_VARIABLE = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_LOG_LEVEL_ERROR = 2
_CAMERA = re.compile(r"/dev/video[0-9]+")
_NETWORK_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Source:
    """What a source's text means.

    Attributes:
        kind: file (also a single picture), folder, camera or network.
        address: absolute path, device path or URL, as it is opened.
        title: for messages and logs; holds no password.
    """

    kind: Kind
    address: str
    title: str

    @property
    def rtsp(self) -> bool:
        """Whether `transport` has a meaning."""
        return self.address.startswith(("rtsp://", "rtsps://"))


@dataclass(frozen=True, slots=True)
class Picture:
    """One decoded picture.

    Attributes:
        image: (H, W, 3) uint8, BGR.
        position_s: seconds from the start of a file by the container's time stamp; None where there is none.
    """

    image: NDArray[np.uint8]
    position_s: float | None


class Reader(abc.ABC):
    """An opened source. Used from one thread.

    Attributes:
        live: True when pictures come at their own pace and a missing one means a lost connection.
        width, height: of the pictures as announced, in pixels.
        fps: nominal rate, 0.0 where unknown.
        frames: number of pictures as announced, None where unknown.
    """

    live = False
    width = 0
    height = 0
    fps = 0.0
    frames: int | None = None

    @abc.abstractmethod
    def read(self) -> Picture | None:
        """The next picture; None at the end."""

    @abc.abstractmethod
    def skip(self) -> bool:
        """Pass over one picture as cheaply as possible; False at the end."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give it back; a second call does nothing."""


def parse_source(source: str | int | os.PathLike[str]) -> Source:
    """What a text, number or path means, without opening it.

    Raises:
        StreamError: no such file, an empty file, not a file or folder, an address of an unknown kind or without a host.
    """
    if isinstance(source, int):
        return Source("camera", f"/dev/video{source}", f"/dev/video{source}")
    text = os.fspath(source)
    title = mask(text)
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if separator and scheme in _NETWORK_PORTS:
        if fault := _address_fault(text):
            raise StreamError(f"{title}: {fault}")
        return Source("network", f"{scheme}://{rest}", title)
    if separator and scheme != "file":
        raise StreamError(f"{title}: scheme {scheme!r} is not one of {', '.join(_NETWORK_PORTS)}, file")
    if separator:
        host, slash, path = rest.partition("/")
        if not slash or host not in ("", "localhost"):
            raise StreamError(f"{title}: a file address has three slashes, as in file:///folder/clip.mp4")
        text = "/" + urllib.parse.unquote(path)
    if not text or "\0" in text:
        raise StreamError("the source is empty or holds a NUL character")
    if text.isascii() and text.isdecimal() and not Path(text).exists():
        text = title = f"/dev/video{text}"
    # Not the text alone: the names of a camera that stay are links, such as those of /dev/v4l/by-id.
    device = os.path.realpath(text)
    return Source("camera", device, title) if _CAMERA.fullmatch(device) else _parse_path(text, title)


def open_reader(source: Source, *, transport: Transport, timeout_s: float, stall_s: float) -> Reader:
    """Open a source.

    Args:
        source: from `parse_source`.
        transport: for RTSP.
        timeout_s: how long a network source may take to open.
        stall_s: how long a read of a network source may take.
    Raises:
        StreamError: it cannot be opened; one line with the cause.
    """
    path = Path(source.address)
    if source.kind == "folder":
        return FolderReader(source.title, _pictures(path, source.title))
    if source.kind == "file" and path.suffix.lower() in PICTURE_SUFFIXES:
        return FolderReader(source.title, [path])
    return CaptureReader(source, transport, timeout_s, stall_s)


class FolderReader(Reader):
    """The pictures of a folder in natural order (`2.jpg` before `10.jpg`), or a single picture.

    EXIF orientation is honoured. A picture that cannot be decoded is passed over and logged.
    """

    def __init__(self, title: str, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._next = 0
        self._fault = ""
        self._first = self._decode_next()
        if self._first is None:
            raise StreamError(
                self._fault if len(paths) == 1 else f"{title}: no picture can be decoded, the last one: {self._fault}"
            )
        self.fps = FOLDER_FPS
        self.frames = len(self._paths)
        self.height, self.width = self._first[1].shape[:2]

    def read(self) -> Picture | None:
        """The next picture that can be decoded."""
        found, self._first = self._first or self._decode_next(), None
        return None if found is None else Picture(found[1], found[0] / FOLDER_FPS)

    def skip(self) -> bool:
        """Pass over one file."""
        if self._first is not None:
            self._first = None
            return True
        self._next += 1
        return self._next <= len(self._paths)

    def close(self) -> None:
        """Nothing is held open."""

    def _decode_next(self) -> tuple[int, NDArray[np.uint8]] | None:
        while self._next < len(self._paths):
            path = self._paths[self._next]
            self._next += 1
            try:
                return self._next - 1, read_image(path)
            except StreamError as error:
                self._fault = str(error)
            except OSError as error:
                self._fault = f"{path}: {error.strerror or error}"
            if len(self._paths) > 1:
                _log.warning("passed over: %s", self._fault)
        return None


class CaptureReader(Reader):
    """Video through OpenCV. The rotation that a file asks for is applied."""

    def __init__(self, source: Source, transport: Transport, timeout_s: float, stall_s: float) -> None:
        started = time.monotonic()
        self._title = source.title
        self._capture = _open_capture(source, transport, timeout_s, stall_s)
        if not self._capture.isOpened():
            self._capture.release()
            late = time.monotonic() - started >= timeout_s * 0.95
            raise StreamError(f"{source.title}: {_why_not(source, timeout_s, late)}")
        self._capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 1)
        get = self._capture.get
        self.width, self.height = int(get(cv2.CAP_PROP_FRAME_WIDTH)), int(get(cv2.CAP_PROP_FRAME_HEIGHT))
        if self.width * self.height > MAX_PIXELS:
            self._capture.release()
            raise StreamError(f"{source.title}: {self.width}x{self.height} pixels are more than the {MAX_PIXELS} taken")
        rate, count = get(cv2.CAP_PROP_FPS), get(cv2.CAP_PROP_FRAME_COUNT)
        self.fps = float(rate) if 0 < rate <= MAX_FPS else 0.0
        self.frames = int(count) if 0 < count < 1e9 else None
        self.live = source.kind == "camera" or source.rtsp or (source.kind == "network" and self.frames is None)

    def read(self) -> Picture | None:
        """The next picture."""
        try:
            for _ in range(_MAX_EMPTY):
                got, image = self._capture.read()
                if not got:
                    return None
                if image is not None and image.size:
                    return Picture(as_bgr(image), self._position_s())
        except (cv2.error, ValueError) as error:  # a decoder that fails; a picture of a size that is not taken
            raise StreamError(f"{self._title}: {_one_line(error)}") from error
        raise StreamError(f"{self._title}: {_MAX_EMPTY} frames in a row hold no picture")

    def skip(self) -> bool:
        """Decode a picture without converting its colours."""
        return bool(self._capture.grab())

    def close(self) -> None:
        """Release the capture."""
        self._capture.release()

    def _position_s(self) -> float | None:
        position_ms = self._capture.get(cv2.CAP_PROP_POS_MSEC)
        return position_ms / 1000 if not self.live and math.isfinite(position_ms) and position_ms >= 0 else None


def quiet_opencv() -> None:
    """Let OpenCV print errors only, unless OPENCV_LOG_LEVEL says otherwise; for programs, which report what fails by themselves."""
    if "OPENCV_LOG_LEVEL" not in os.environ:
        # OpenCV 4 has it at the top, OpenCV 5 in `utils.logging`.
        set_level = getattr(cv2, "setLogLevel", None) or cv2.utils.logging.setLogLevel
        set_level(_LOG_LEVEL_ERROR)


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as people do: runs of digits by their value."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), part) if part[0].isdecimal() and part.isascii() else (1, 0, part.lower()) for part in parts]


def _parse_path(text: str, title: str) -> Source:
    path = Path(os.path.expanduser(text)).absolute()  # noqa: PTH111 - Path's own raises for a file `~name.mp4`
    try:
        status = path.stat()
    except FileNotFoundError:
        raise StreamError(f"{title}: there is no such file or folder") from None
    except OSError as error:
        raise StreamError(f"{title}: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        return Source("folder", str(path), title)
    if not stat.S_ISREG(status.st_mode):
        raise StreamError(f"{title}: neither a file nor a folder nor a camera /dev/videoN")
    if status.st_size == 0:
        raise StreamError(f"{title}: the file is empty")
    if not os.access(path, os.R_OK):
        raise StreamError(f"{title}: permission denied")
    if path.suffix.lower() in _TEXT_SUFFIXES:
        raise StreamError(f"{title}: {path.suffix} is not the name of a video")
    return Source("file", str(path), title)


def _pictures(folder: Path, title: str) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file()]
    except OSError as error:
        raise StreamError(f"{title}: {error.strerror or error}") from error
    if not found:
        raise StreamError(f"{title}: the folder holds no pictures ({', '.join(sorted(PICTURE_SUFFIXES))})")
    return sorted(found, key=lambda path: natural_key(path.name))


def _open_capture(source: Source, transport: Transport, timeout_s: float, stall_s: float) -> cv2.VideoCapture:
    capture = cv2.VideoCapture()
    with contextlib.suppress(cv2.error):  # an opening that fails by an exception leaves the capture closed
        if source.kind == "camera":
            capture.open(source.address, cv2.CAP_V4L2)
        else:
            limits = [cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _ms(timeout_s), cv2.CAP_PROP_READ_TIMEOUT_MSEC, _ms(stall_s)]
            with _TRANSPORTS.use(transport, source.title, timeout_s) if source.rtsp else contextlib.nullcontext():
                capture.open(source.address, cv2.CAP_FFMPEG, limits)
    return capture


class _Transports:
    """The RTSP transport goes to OpenCV by an environment variable: openings of different transports take turns."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._transport: str | None = None
        self._users = 0
        self._before: str | None = None

    @contextlib.contextmanager
    def use(self, transport: str, title: str, timeout_s: float) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._transport in (None, transport), timeout_s):
                raise StreamError(
                    f"{title}: its turn has not come within {timeout_s:g} s, others open over {self._transport}"
                )
            if self._users == 0:
                self._before = os.environ.get(_OPTIONS_VARIABLE)
                options = [f"rtsp_transport;{transport}", *([self._before] if self._before else [])]
                os.environ[_OPTIONS_VARIABLE] = "|".join(options)
            self._transport = transport
            self._users += 1
        try:
            yield
        finally:
            with self._changed:
                self._users -= 1
                if self._users == 0:
                    self._transport = None
                    os.environ.pop(_OPTIONS_VARIABLE)
                    if self._before is not None:
                        os.environ[_OPTIONS_VARIABLE] = self._before
                    self._changed.notify_all()


_TRANSPORTS = _Transports()


def _why_not(source: Source, timeout_s: float, late: bool) -> str:
    """OpenCV does not say why an opening failed; look for the likely cause."""
    if source.kind == "file":
        return "not a video that can be read, or damaged"
    if source.kind == "camera":
        path = Path(source.address)
        if not path.exists():
            return "there is no such camera"
        return (
            "permission denied" if not os.access(path, os.R_OK | os.W_OK) else "the camera is in use or gives no video"
        )
    if late:
        return f"no video within {timeout_s:g} s"
    parts = urllib.parse.urlsplit(source.address)
    port = parts.port or _NETWORK_PORTS[parts.scheme]
    try:
        socket.create_connection((parts.hostname or "", port), timeout=min(timeout_s, 2.0)).close()
    except OSError as error:
        return f"{parts.hostname}:{port}: {error.strerror or error}"
    except UnicodeError:  # such as two dots in a row
        return f"{parts.hostname}: not a name of a host"
    return "the server answers, and refuses or sends no video: check path, user name and password"


def _address_fault(url: str) -> str | None:
    if any(character < " " or character == "\x7f" for character in url):
        return "the address holds a control character"
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:  # its text may hold a part of a password
        return "the address has no host that can be told, or a port that is no number"
    return None if parts.hostname else "the address has no host"


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
