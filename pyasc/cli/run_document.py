"""`pyasc run` of a configuration document: all its pipelines, each in its own thread."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyasc.cli.run_output import VideoFile, Window, check_output
from pyasc.cli.run_signals import Stop, signals
from pyasc.cli.run_view import RunView
from pyasc.errors import ConfigError

if TYPE_CHECKING:
    from pyasc.agent.pipeline import Pipeline
    from pyasc.agent.stream import Stream
    from pyasc.types import Detections, Frame

_POLL_S = 0.1
# With a window the next picture should not wait.
_WINDOW_POLL_S = 0.01


def run_document(
    path: Path, model_dir: Path | None, *, frames: int | None, output: Path | None, show: bool, as_json: bool
) -> int:
    """Run the pipelines of a document until all have ended; returns the exit code.

    Args:
        path: of the document.
        model_dir: the folder of its models, None for its own.
        frames: a pipeline ends after so many.
        output: annotated video to write; of several pipelines each has a file, with its name in it.
        show: show the annotated video of the one pipeline.
        as_json: one JSON object a line for each frame and event.
    Raises:
        ConfigError: with every fault of the document.
        UsageError: there are several pipelines to show, or a video would replace a source.
    """
    from pyasc.agent.assembly import check_document
    from pyasc.agent.document import parse_document
    from pyasc.agent.sources import quiet_opencv

    quiet_opencv()
    folder = (model_dir or path.parent).resolve()
    document = parse_document(path.read_bytes())
    if faults := check_document(document, model_dir=folder):
        raise ConfigError(faults)
    specs: dict[str, Mapping[str, Any]] = document["pipelines"]
    enabled = sorted(name for name, spec in specs.items() if spec.get("enabled", True))
    if show and len(enabled) != 1:
        raise click.UsageError(f"--show is for one pipeline, {path.name} runs {len(enabled)}: use --output")
    outputs = (
        {name: output if len(enabled) == 1 else _named(output, name) for name in enabled} if output is not None else {}
    )
    for file in outputs.values():
        check_output(file, [specs[name]["source"]["url"] for name in enabled])
    with contextlib.ExitStack() as stack:
        # The cheap things first: a display or folder that is missing is told before a model is loaded.
        window = stack.enter_context(Window()) if show else None
        videos = {name: stack.enter_context(VideoFile(file)) for name, file in outputs.items()}
        view = RunView(as_json, name_pipelines=True)
        followers = [_Follower(name, spec, folder, view, videos.get(name), frames) for name, spec in specs.items()]
        code = _run(followers, view, window)
    for video in videos.values():
        if video.frames:
            view.note(f"video: {video.path}")
    view.raise_broken()
    return code


def _named(path: Path, pipeline: str) -> Path:
    return path.with_name(f"{path.stem}-{pipeline}{path.suffix}")


def _run(followers: list[_Follower], view: RunView, window: Window | None) -> int:
    from pyasc.agent.pipeline import prepare_all

    pipelines = [follower.pipeline for follower in followers]
    try:
        prepare_all(pipelines)
        with view, signals() as stop:
            for follower in followers:
                follower.shown = window is not None
                follower.pipeline.start()
            failed = _watch(followers, view, window, stop)
    finally:
        for pipeline in pipelines:
            pipeline.request_stop()
        for pipeline in pipelines:
            pipeline.stop()
    figures = [pipeline.statistics() for pipeline in pipelines]
    view.summary(sum(f["frames"] for f in figures), sum(f["dropped"] for f in figures))
    return 1 if failed else stop.exit_code


def _watch(followers: list[_Follower], view: RunView, window: Window | None, stop: Stop) -> bool:
    """Wait until each has come to its end or failed, or the user wants to end; whether one has failed."""
    failed: set[str] = set()
    while not (stop.wanted or view.broken):
        open_ones = 0
        for follower in followers:
            pipeline = follower.pipeline
            status = pipeline.status()
            view.status(pipeline.name, {**status, "tracks": pipeline.statistics()["tracks"]})
            if status["state"] == "failed":
                failed.add(pipeline.name)
                pipeline.request_stop()
            open_ones += status["state"] in ("starting", "running", "reconnecting")
        if not open_ones or (window is not None and not _show(followers, window)):
            break
        time.sleep(_POLL_S if window is None else _WINDOW_POLL_S)
    return bool(failed)


def _show(followers: list[_Follower], window: Window) -> bool:
    """Show the newest picture; False when the user wants to end."""
    for follower in followers:
        if follower.pictures:
            return window.show(follower.pictures.pop())
    return window.keep()


class _Follower:
    """A pipeline and what is made of its results. Its sink and watcher are called from the pipeline's thread.

    Attributes:
        shown: whether somebody takes `pictures`.
        pictures: the newest annotated one, until it is taken.
    """

    def __init__(
        self,
        name: str,
        spec: Mapping[str, Any],
        folder: Path,
        view: RunView,
        video: VideoFile | None,
        limit: int | None,
    ) -> None:
        from pyasc.agent.pipeline import Pipeline

        self.pipeline: Pipeline = Pipeline(name, spec, model_dir=folder, sink=self, watch=self._take)
        self.shown = False
        self.pictures: deque[Any] = deque(maxlen=1)
        self._view, self._video, self._limit = view, video, limit
        self._frames = 0
        self._every = spec["source"].get("every", 1)

    def events(self, pipeline: str, events: Any) -> None:
        self._view.events(pipeline, events)

    def tracks(self, pipeline: str, message: Any) -> None:
        """Those of each frame come by `_take`, whether the document has them published or not."""

    def _take(self, frame: Frame, found: Detections, stream: Stream) -> None:
        from pyasc.agent.draw import draw
        from pyasc.agent.events import frame_message

        pipeline = self.pipeline
        if self._frames == self._limit:
            return
        self._frames += 1
        self._view.tracks(pipeline.name, frame_message(found, frame))
        if self._video is not None or self.shown:
            drawn = draw(frame.image.copy(), found, pipeline.spec.get("zones"), pipeline.spec.get("lines"))
            if self._video is not None:
                self._video.fps = stream.fps / self._every
                self._video.write(drawn)
            if self.shown:
                self.pictures.append(drawn)
        if self._frames == self._limit:
            pipeline.request_stop()
