"""Streams of files made by ffmpeg, of folders, and of a small HTTP camera; what comes out is compared with what was put in."""

from __future__ import annotations

import contextlib
import gc
import http.server
import itertools
import logging
import os
import socket
import socketserver
import struct
import subprocess
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

import pyasc
from pyasc.agent import producer, sources
from pyasc.agent.producer import PositionClock
from pyasc.agent.sources import CaptureReader, natural_key
from pyasc.errors import StreamError


def ffmpeg(*arguments: str) -> None:
    subprocess.run(["ffmpeg", "-v", "error", "-y", *arguments], check=True, timeout=60)


def make(path: Path, *options: str, source: str = "testsrc=size=160x120:rate=10:duration=2") -> Path:
    ffmpeg("-f", "lavfi", "-i", source, *options, str(path))
    return path


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 frames, 160x120, 10 frames a second."""
    return make(tmp_path_factory.mktemp("clips") / "clip.mp4", "-pix_fmt", "yuv420p")


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        tick.wait(0.01)


# --- files


def test_every_frame_of_a_file_comes_in_order_with_its_time(clip):
    before = time.time()
    with pyasc.Stream(clip) as stream:
        assert (stream.width, stream.height, stream.resolution, stream.fps) == (160, 120, 120, 10.0)
        assert not stream.live
        frames = list(stream)
    assert [frame.index for frame in frames] == list(range(20))
    assert all(frame.image.shape == (120, 160, 3) and frame.image.dtype == np.uint8 for frame in frames)
    assert np.diff([frame.time for frame in frames]) == pytest.approx(np.full(19, 0.1), abs=1e-3)
    assert np.diff([frame.clock for frame in frames]) == pytest.approx(np.full(19, 0.1), abs=1e-6)
    assert before <= frames[0].time <= time.time()
    assert (stream.state, stream.dropped, stream.ended) == ("ended", 0, True)


def test_the_pictures_are_those_that_another_decoder_gives(clip, tmp_path):
    ffmpeg("-i", str(clip), str(tmp_path / "%02d.png"))
    with pyasc.Stream(clip) as stream:
        for frame, path in zip(stream, sorted(tmp_path.glob("*.png")), strict=True):
            # Two versions of swscale may round colours differently.
            assert np.abs(frame.image.astype(int) - cv2.imread(str(path)).astype(int)).mean() < 2


def test_a_file_address_with_escapes(clip, tmp_path):
    copy = tmp_path / "a clip %41 ü.mp4"
    copy.write_bytes(clip.read_bytes())
    with pyasc.Stream(copy.as_uri()) as stream:
        assert len(list(stream)) == 20


def test_each_third_frame_keeps_its_number_and_time(clip):
    with pyasc.Stream(clip, every=3) as stream:
        frames = list(stream)
    assert [frame.index for frame in frames] == list(range(0, 20, 3))
    assert np.diff([frame.clock for frame in frames]) == pytest.approx(np.full(6, 0.3), abs=1e-6)


def test_a_loop_goes_on_in_number_and_time(clip):
    with pyasc.Stream(clip, loop=True) as stream:
        frames = list(itertools.islice(stream, 45))
    assert [frame.index for frame in frames] == list(range(45))
    assert np.diff([frame.clock for frame in frames]) == pytest.approx(np.full(44, 0.1), abs=1e-3)
    assert np.array_equal(frames[0].image, frames[40].image)


def test_a_variable_frame_rate_keeps_the_containers_times(tmp_path):
    vfr = make(tmp_path / "vfr.mp4", "-vf", "select='not(between(n,3,9))'", "-vsync", "vfr", "-pix_fmt", "yuv420p")
    with pyasc.Stream(vfr) as stream:
        clocks = [frame.clock for frame in stream]
    expected = [n / 10 for n in range(20) if not 3 <= n <= 9]
    assert np.array(clocks) - clocks[0] == pytest.approx(np.array(expected), abs=1e-3)


def test_a_file_without_time_stamps_has_the_nominal_rate(tmp_path):
    raw = make(tmp_path / "raw.h264", "-pix_fmt", "yuv420p")
    with pyasc.Stream(raw) as stream:
        clocks = [frame.clock for frame in stream]
    assert len(clocks) == 20
    assert np.diff(clocks) == pytest.approx(np.full(19, 1 / stream.fps), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("odd.mp4", (161, 121), ("-pix_fmt", "yuv444p")),
        ("deep.mp4", (160, 120), ("-pix_fmt", "yuv420p10le")),
        ("grey.avi", (160, 120), ("-c:v", "ffv1", "-pix_fmt", "gray")),
        ("motion.avi", (96, 64), ("-c:v", "mjpeg", "-q:v", "3")),
        ("tiny.avi", (2, 2), ("-c:v", "ffv1")),
    ],
)
def test_unusual_pictures_come_as_bgr(tmp_path, name, size, options):
    source = f"testsrc=size={size[0]}x{size[1]}:rate=10:duration=0.5"
    with pyasc.Stream(make(tmp_path / name, *options, source=source)) as stream:
        frames = list(stream)
    assert len(frames) == 5
    assert {frame.image.shape for frame in frames} == {(size[1], size[0], 3)}
    assert {frame.image.dtype for frame in frames} == {np.dtype(np.uint8)}


def test_the_rotation_flag_is_honoured(clip, tmp_path):
    rotated = tmp_path / "rotated.mp4"
    ffmpeg("-i", str(clip), "-c", "copy", "-metadata:s:v", "rotate=90", str(rotated))
    with pyasc.Stream(rotated) as stream, pyasc.Stream(clip) as upright:
        assert (stream.width, stream.height, stream.resolution) == (120, 160, 120)
        first, plain = next(stream), next(upright)
    assert first.image.shape == (160, 120, 3)
    turned = [cv2.rotate(plain.image, how) for how in (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_90_COUNTERCLOCKWISE)]
    assert min(np.abs(first.image.astype(int) - other.astype(int)).mean() for other in turned) < 2


def test_realtime_drops_what_is_not_taken(clip):
    with pyasc.Stream(clip, realtime=True) as stream:
        first = next(stream)
        wait_for(lambda: stream.state == "ended")
        rest = list(stream)
        assert stream.dropped == 18
    assert first.index < 19
    assert [frame.index for frame in rest] == [19]
    assert rest[0].clock <= time.monotonic()


def test_a_file_waits_for_a_slow_reader(clip):
    with pyasc.Stream(clip) as stream:
        wait_for(lambda: stream.queued == 4)
        assert stream.state == "running"
        assert len(list(stream)) == 20


def test_the_newest_policy_for_a_file(clip):
    with pyasc.Stream(clip, policy="newest") as stream:
        wait_for(lambda: stream.state == "ended")
        assert [frame.index for frame in stream] == [19]
        assert stream.dropped == 19


# --- files that are no good


def _truncated(clip: Path, path: Path) -> Path:
    ts = path.with_suffix(".ts")
    ffmpeg("-i", str(clip), "-c", "copy", str(ts))
    path.write_bytes(ts.read_bytes()[: ts.stat().st_size // 2])
    return path


def test_a_truncated_file_gives_what_is_there(clip, tmp_path):
    with pyasc.Stream(_truncated(clip, tmp_path / "half.ts")) as stream:
        assert 0 < len(list(stream)) < 20


def test_damage_in_the_middle_does_not_end_a_file(clip, tmp_path):
    data = bytearray(make(tmp_path / "good.avi", "-c:v", "mjpeg").read_bytes())
    middle = len(data) // 2
    data[middle : middle + 2000] = bytes(2000)
    (tmp_path / "bad.avi").write_bytes(data)
    with pyasc.Stream(tmp_path / "bad.avi") as stream:
        assert len(list(stream)) >= 15


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.mp4", None, "there is no such file or folder"),
        ("empty.mp4", b"", "the file is empty"),
        ("text.mp4", b"not a video\n" * 100, "not a video that can be read, or damaged"),
        ("cut.mp4", "clip", "not a video that can be read, or damaged"),
        ("text.jpg", b"not a picture", "not a picture"),
        ("noise.dat", bytes(range(256)) * 50, "not a video that can be read, or damaged"),
        ("noise.bin", bytes(range(256)) * 50, ".bin is not the name of a video"),
        ("notes.txt", b"text that FFmpeg would draw\n" * 100, ".txt is not the name of a video"),
        ("model.asc", b"PK\3\4" + bytes(4000), ".asc is not the name of a video"),
    ],
)
def test_a_file_that_is_no_video(clip, tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(clip.read_bytes()[:3000] if content == "clip" else content)
    with pytest.raises(StreamError) as caught:
        pyasc.Stream(path)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)
    assert not [thread for thread in threading.enumerate() if str(path) in thread.name]


def test_sources_that_mean_nothing(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "camera").symlink_to("/dev/video97")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1.png").write_bytes(b"no")
    (tmp_path / "bad" / "2.png").write_bytes(b"no")
    os.mkfifo(tmp_path / "pipe.mp4")
    monkeypatch.chdir(tmp_path)
    for source, message in (
        ("", "empty"),
        ("ftp://host/x", "scheme 'ftp'"),
        ("rtsp://", "no host"),
        ("rtsp://host:port/x", "a port that is no number"),
        ("rtsp://host/x\r\nrtsp://y", "a control character"),
        ("http://a..b/x", "a..b: not a name of a host"),
        ("file://clip.mp4", "three slashes"),
        ("file://", "three slashes"),
        ("file:///a%00b", "a NUL character"),
        ("~nobody.mp4", "no such file"),
        ("a" * 300, "File name too long"),
        ("pipe.mp4", "neither a file nor a folder nor a camera"),
        ("camera", "^camera: there is no such camera"),
        ("concat:/etc/passwd", "no such file"),
        ("/dev/null", "neither a file nor a folder nor a camera"),
        ("/dev/video97", "there is no such camera"),
        (97, "there is no such camera"),
        ("97", "/dev/video97: there is no such camera"),
        (-1, "there is no such camera"),
        (tmp_path / "empty", "holds no pictures"),
        ("bad", "^bad: no picture can be decoded, the last one: .*2.png: not a picture"),
    ):
        with pytest.raises(StreamError, match=message):
            pyasc.Stream(source)


@pytest.mark.parametrize(
    "options",
    [{"loop": True}, {"realtime": True}, {"every": 0}, {"timeout_s": 0}, {"timeout_s": float("inf")}],
)
def test_options_that_cannot_be_honoured_are_refused(options):
    with pytest.raises(ValueError):
        pyasc.Stream("rtsp://127.0.0.1:9/x", **options)


def test_a_password_that_an_address_must_not_hold_is_not_told():
    with pytest.raises(StreamError) as caught:
        pyasc.Stream("rtsp://admin:hunter/2@camera/x")
    assert "hunter" not in str(caught.value)


def test_a_cut_off_file_that_is_looped_is_told_once(tmp_path, caplog):
    data = make(tmp_path / "good.avi", "-c:v", "mjpeg").read_bytes()
    (tmp_path / "cut.avi").write_bytes(data[: len(data) // 2])
    with pyasc.Stream(tmp_path / "cut.avi", loop=True) as stream:
        assert [frame.index for frame in itertools.islice(stream, 45)] == list(range(45))
    assert caplog.text.count("damaged or cut off") == 1


def test_transport_is_for_rtsp(clip):
    with pytest.raises(ValueError, match="rtsp addresses only"):
        pyasc.Stream(clip, transport="udp")


# --- pictures


def test_a_picture_of_absurd_size_is_refused_before_memory_is_taken(tmp_path):
    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + b"\0\0\0\0IEND\xaeB`\x82")
    with pytest.raises(StreamError, match="60000 x 60000 pixels are more than"):
        pyasc.Stream(tmp_path / "bomb.png")


def test_a_folder_in_natural_order_with_odd_pictures(tmp_path, caplog):
    pictures = {
        "img10.png": np.full((8, 8, 3), 10, np.uint8),
        "img2.png": np.full((6, 7), 2, np.uint8),
        "img1.png": np.full((5, 4, 4), 1, np.uint8),
        "img3.png": np.full((8, 8), 3 << 8, np.uint16),
    }
    for name, image in pictures.items():
        cv2.imwrite(str(tmp_path / name), image)
    (tmp_path / "img4.png").write_bytes(b"damaged")
    (tmp_path / "notes.txt").write_text("no picture")
    with pyasc.Stream(tmp_path) as stream:
        assert stream.fps == 25.0
        shapes, values, clocks = [], [], []
        for frame in stream:
            assert (stream.width, stream.height) == (frame.width, frame.height)
            shapes.append(frame.image.shape)
            values.append(int(frame.image[0, 0, 0]))
            clocks.append(frame.clock)
    assert values == [1, 2, 3, 10]
    assert shapes == [(5, 4, 3), (6, 7, 3), (8, 8, 3), (8, 8, 3)]
    assert np.diff(clocks) == pytest.approx([0.04, 0.04, 0.08])
    assert "img4.png: not a picture" in caplog.text


def test_a_single_picture(tmp_path):
    cv2.imwrite(str(tmp_path / "one.jpg"), np.zeros((30, 40, 3), np.uint8))
    with pyasc.Stream(tmp_path / "one.jpg") as stream:
        assert [frame.image.shape for frame in stream] == [(30, 40, 3)]


def test_natural_order():
    names = ["b1", "a10", "a9", "a09", "A2", "1", "10", "2", "x٣"]
    assert sorted(names, key=natural_key) == ["1", "2", "10", "A2", "a09", "a9", "a10", "b1", "x٣"]


# --- times


def test_broken_time_stamps_never_go_backward():
    clock = PositionClock(10.0)
    assert [clock.next(p) for p in (5.0, 5.1, None, 5.1, 4.0, 5.9, 5.9)] == pytest.approx(
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.9, 1.0]
    )
    clock.restart()
    assert [clock.next(p) for p in (0.0, 0.1)] == pytest.approx([1.1, 1.2])


def test_a_pause_in_a_file_is_kept_and_a_leap_of_its_clock_is_not():
    """26.5 hours: where the 33 bits of an MPEG time stamp end."""
    clock = PositionClock(10.0)
    stamps = (0.0, 0.1, 60.0, 95443.7, 95443.8, 1e300, None)
    assert [clock.next(p) for p in stamps] == pytest.approx([0.0, 0.1, 60.0, 60.1, 60.2, 60.3, 60.4])
    clock = PositionClock(1.0)
    assert [clock.next(p, 1000) for p in (0.0, 1000.0, 2000.0)] == pytest.approx([999.0, 1999.0, 2999.0])


# --- a camera over HTTP


class Camera(socketserver.ThreadingTCPServer):
    """An MJPEG camera: each connection gets `frames` pictures, then the connection is cut, or silent when `hang` is set."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _CameraHandler)
        self.frames = 10
        self.hang = False
        self.sizes = [(64, 48)]
        self.connections = 0
        self.released = threading.Event()
        self.url = f"http://user:secret@127.0.0.1:{self.server_address[1]}/video"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()


class _CameraHandler(http.server.BaseHTTPRequestHandler):
    server: Camera

    def do_GET(self) -> None:
        self.server.connections += 1
        sizes = self.server.sizes
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        try:
            for number in itertools.count():
                if number == self.server.frames:
                    break
                width, height = sizes[min(number, len(sizes) - 1)]
                _, data = cv2.imencode(".jpg", np.full((height, width, 3), 40, np.uint8))
                head = f"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n"
                self.wfile.write(head.encode() + data.tobytes() + b"\r\n")
                self.server.released.wait(0.02)
            if self.server.hang:
                self.server.released.wait(30)
        except OSError:
            pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def camera() -> Iterator[Camera]:
    server = Camera()
    yield server
    server.stop()


def test_a_live_source_drops_and_counts_and_arrives_now(camera):
    camera.frames = -1
    with pyasc.Stream(camera.url, timeout_s=3) as stream:
        assert stream.live
        first = next(stream)
        before = stream.dropped  # some may have gone before the first one was taken
        wait_for(lambda: stream.dropped >= before + 5)
        frame = next(stream)
        assert frame.index >= first.index + 5
        assert first.clock < frame.clock <= time.monotonic()
        assert frame.time <= time.time()


def test_a_lost_connection_is_made_again(camera, caplog):
    caplog.set_level(logging.DEBUG)
    with pyasc.Stream(camera.url, timeout_s=3) as stream:
        frames = list(itertools.islice(stream, 1))
        wait_for(lambda: stream.reconnects >= 1)
        assert stream.state == "reconnecting"
        assert "connection was lost" in stream.reason
        wait_for(lambda: stream.read(0.1) is not None and camera.connections >= 2)
        assert stream.state == "running"
        assert stream.reason is None
        assert next(stream).index > frames[0].index
        shown = repr(stream)
    assert "secret" not in caplog.text + shown
    assert "127.0.0.1" in caplog.text


def test_silence_is_noticed(camera):
    camera.frames, camera.hang = 3, True
    with pyasc.Stream(camera.url, timeout_s=1) as stream:
        next(stream)
        wait_for(lambda: stream.state == "reconnecting" and stream.reconnects >= 1)


def test_a_camera_that_changes_its_resolution(camera):
    camera.sizes = [(64, 48)] * 4 + [(32, 24)]
    camera.frames = -1
    with pyasc.Stream(camera.url, timeout_s=3, policy="all") as stream:
        seen = []
        for frame in itertools.islice(stream, 8):
            assert (stream.width, stream.height) == (frame.width, frame.height)
            seen.append(frame.width)
    assert seen[0] == 64
    assert set(seen) <= {64, 32}


def test_a_picture_that_is_not_taken_costs_a_live_source_its_connection_only(camera, monkeypatch):
    monkeypatch.setattr(sources, "MAX_PIXELS", 64 * 48)
    camera.frames = 4
    with pyasc.Stream(camera.url, timeout_s=3, policy="all") as stream:
        camera.sizes = [(128, 96)]  # of the connections after this one
        assert [next(stream).width for _ in range(4)] == [64] * 4
        wait_for(lambda: stream.read(0.01) is None and "128x96 pixels are more than the 3072" in (stream.reason or ""))
        assert stream.state == "reconnecting"
        camera.sizes = [(64, 48)]
        assert [next(stream).width for _ in range(4)] == [64] * 4


def test_calls_that_hang_one_after_the_other_are_all_noticed(camera, monkeypatch):
    """The first one comes back while the second hangs, which must not end the watch over that."""
    camera.frames = -1
    holds = [threading.Event(), threading.Event()]
    hanging = [threading.Event(), threading.Event()]
    ended = threading.Event()
    calls = itertools.count()
    read = CaptureReader.read

    def hang(reader: CaptureReader) -> object:
        number = next(calls)
        if number in (2, 5):
            hanging[number // 3].set()
            holds[number // 3].wait(30)
        return read(reader)

    close = CaptureReader.close
    monkeypatch.setattr(CaptureReader, "close", lambda reader: close(reader) or ended.set())
    monkeypatch.setattr(CaptureReader, "read", hang)
    monkeypatch.setattr(producer, "_GRACE_S", 0.1)
    with pyasc.Stream(camera.url, timeout_s=0.5) as stream:
        wait_for(lambda: stream.read(0.01) is None and hanging[1].is_set())
        assert stream.reconnects == 1
        holds[0].set()
        assert ended.wait(10)  # the first thread has given its capture back
        wait_for(lambda: stream.read(0.01) is None and stream.reconnects == 2)
        assert "does not return" in stream.reason
        wait_for(lambda: stream.read(0.01) is not None)
        assert stream.state == "running"
        holds[1].set()


def test_a_refused_connection_says_so_without_the_password():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(StreamError) as caught:
        pyasc.Stream(f"rtsp://admin:p%40ss@127.0.0.1:{port}/x", timeout_s=3)
    text = str(caught.value)
    assert "Connection refused" in text
    assert "p%40ss" not in text
    assert "\n" not in text


def test_a_server_that_never_answers():
    refused = pytest.raises(StreamError, match=r"no video within 0\.5 s|not open after")
    with socket.create_server(("127.0.0.1", 0)) as server, refused:
        pyasc.Stream(f"rtsp://127.0.0.1:{server.getsockname()[1]}/x", timeout_s=0.5)


def test_retry_waits_for_a_camera_that_comes_later():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pyasc.Stream(f"http://127.0.0.1:{port}/video", timeout_s=2, retry=True) as stream:
        wait_for(lambda: stream.state == "reconnecting")
        assert (stream.width, stream.resolution) == (0, 0)
        assert "refused" in stream.reason
        server = Camera(port)
        try:
            wait_for(lambda: stream.read(0.1) is not None)
            assert stream.state == "running"
        finally:
            server.stop()


def test_http_files_end(clip):
    handler = type("Handler", (_FileHandler,), {"data": clip.read_bytes()})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pyasc.Stream(f"http://127.0.0.1:{server.server_address[1]}/clip.mp4", timeout_s=5) as stream:
            assert not stream.live
            assert len(list(stream)) == 20
        server.shutdown()


class _FileHandler(http.server.BaseHTTPRequestHandler):
    data = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "video/mp4")
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(self.data)

    def log_message(self, format: str, *args: object) -> None:
        pass


class RtspRecorder(socketserver.ThreadingTCPServer):
    """Answers RTSP up to SETUP, which it refuses, and keeps the transports that were asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _RtspHandler)
        self.transports: list[str] = []


class _RtspHandler(socketserver.StreamRequestHandler):
    server: RtspRecorder

    def handle(self) -> None:
        request: list[str] = []
        for raw in self.rfile:
            line = raw.decode().strip()
            if line:
                request.append(line)
                continue
            headers = dict(part.split(": ", 1) for part in request[1:])
            body = ""
            status = "200 OK"
            if request[0].startswith("DESCRIBE"):
                body = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 0 RTP/AVP 26\r\na=control:track0\r\n"
            if request[0].startswith("SETUP"):
                self.server.transports.append(headers["Transport"])
                status = "461 Unsupported Transport"
            head = f"RTSP/1.0 {status}\r\nCSeq: {headers['CSeq']}\r\nPublic: DESCRIBE, SETUP, PLAY\r\n"
            head += f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write((head + body).encode())
            request = []


@pytest.mark.parametrize(("transport", "asked"), [("tcp", "RTP/AVP/TCP"), ("udp", "RTP/AVP/UDP")])
def test_the_rtsp_transport_is_the_one_that_was_asked_for(transport, asked):
    with RtspRecorder() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(StreamError, match="the server answers, and refuses"):
            pyasc.Stream(f"rtsp://127.0.0.1:{server.server_address[1]}/x", transport=transport, timeout_s=3)
        server.shutdown()
    assert server.transports
    assert all(asked in transport for transport in server.transports)


# --- ends


def test_close_ends_the_thread_and_the_iteration(clip):
    stream = pyasc.Stream(clip, loop=True)
    next(stream)
    thread = stream._producer.thread
    stream.close()
    stream.close()
    assert (stream.state, stream.reason) == ("ended", None)
    assert not thread.is_alive()
    assert list(stream) == []


def test_a_stream_that_is_forgotten_ends_its_thread(clip):
    stream = pyasc.Stream(clip, loop=True)
    thread = stream._producer.thread
    gone = weakref.ref(stream)
    del stream
    gc.collect()
    assert gone() is None
    wait_for(lambda: not thread.is_alive())


def test_a_read_that_never_returns_is_left_alone(clip, monkeypatch):
    """A decoder that hangs cannot be made on purpose with a real file: the reader's own call is held here."""
    hold = threading.Event()
    monkeypatch.setattr(producer, "_GRACE_S", 0.1)
    monkeypatch.setattr(CaptureReader, "read", lambda self: hold.wait(30) and None)
    with pyasc.Stream(clip, timeout_s=0.3) as stream:
        with pytest.raises(StreamError, match="does not return"):
            next(stream)
        assert stream.ended
        hold.set()
