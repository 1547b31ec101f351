"""`pyasc run`: pipelines in the foreground, without an agent."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import click

from pyasc.cli.run_document import run_document
from pyasc.cli.run_output import CODECS, VideoFile, Window, check_output
from pyasc.cli.run_signals import Stop, signals
from pyasc.cli.run_view import RunView

_DOCUMENTS = (".yaml", ".yml", ".json")
_CONVERTIBLE = (".pt", ".pth", ".onnx")
# What a document does not say itself.
_OF_BOTH = {"frames", "output", "show", "as_json"}
_RATE_WINDOW_S = 1.0


@click.command("run")
@click.argument("target", metavar="CONFIG|SOURCE")
@click.option("--model", type=click.Path(path_type=Path), help="Detection model of a SOURCE, an .asc file.")
@click.option("--detector", default="yolov5", show_default=True, help="Detector plugin.")
@click.option("--tracker", default="deepsort", show_default=True, help="Tracker plugin, or none.")
@click.option("--tracker-model", type=click.Path(path_type=Path), help="Appearance model of the tracker, an .asc file.")
@click.option(
    "--device", help="Device of detector and tracker, as `pyasc devices` names it; default: the best present."
)
@click.option("--confidence", type=click.FloatRange(0, 1), help="Least score of a detection.")
@click.option("--classes", help="Names of the classes to look for, separated by commas.")
@click.option("--threads", type=click.IntRange(1), help="Threads of the detector, where the device has such.")
@click.option("--transport", type=click.Choice(["tcp", "udp"]), default="tcp", show_default=True, help="For RTSP.")
@click.option("--realtime", is_flag=True, help="Read a file no faster than it was recorded.")
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="Process each n-th frame.")
@click.option(
    "--frames", type=click.IntRange(1), help="End after this many processed frames; of a CONFIG, each pipeline."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help=f"Annotated video to write ({', '.join(CODECS)}). Of several pipelines, x.mp4 is x-NAME.mp4 for each.",
)
@click.option("--show", is_flag=True, help="Show the annotated video of one pipeline in a window; q closes it.")
@click.option("--model-dir", type=click.Path(path_type=Path), help="Folder of a CONFIG's models; default: its own.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for each frame and event.")
@click.pass_context
def command(context: click.Context, /, target: str, **options: Any) -> int:
    """Run a video SOURCE, or all pipelines of a CONFIG (.yaml or .json), in the foreground.

    A SOURCE is a video file, a picture, a folder of pictures, a camera (0, /dev/video0), or an rtsp or http address. Ends with the
    source, with --frames, or on Ctrl-C; then the exit code is 130 and what was written is complete up to there.
    """
    given = {
        name for name in options if context.get_parameter_source(name) not in (None, click.core.ParameterSource.DEFAULT)
    }
    if Path(target).suffix.lower() in _DOCUMENTS and "://" not in target:
        if wrong := sorted(given - _OF_BOTH - {"model_dir"}):
            raise click.UsageError(f"--{wrong[0].replace('_', '-')} is for a SOURCE: a CONFIG says it itself")
        _check_suffix(options["output"])
        return run_document(
            Path(target), options["model_dir"], **{name: value for name, value in options.items() if name in _OF_BOTH}
        )
    if "model_dir" in given:
        raise click.UsageError("--model-dir is for a CONFIG")
    if options["model"] is None:
        raise click.UsageError("--model is missing: a SOURCE needs a detection model (see `pyasc convert`)")
    for model in (options["model"], options["tracker_model"]):
        if model is not None and model.suffix.lower() in _CONVERTIBLE:
            raise click.UsageError(f"{model} is not an .asc file yet: convert it first by `pyasc convert {model}`")
    if options["tracker"] == "none" and options["tracker_model"] is not None:
        raise click.UsageError("--tracker-model is for a tracker: --tracker is none")
    _check_suffix(options["output"])
    _check_source(target, options)
    return _run_source(target, options)


def _check_suffix(output: Path | None) -> None:
    if output is not None and output.suffix.lower() not in CODECS:
        raise click.UsageError(f"--output: {output.name} must end in {', '.join(CODECS)}")


def _check_source(source: str, options: dict[str, Any]) -> None:
    from pyasc.agent.sources import parse_source

    parsed = parse_source(source)
    if options["transport"] != "tcp" and not parsed.rtsp:
        raise click.UsageError(f"--transport {options['transport']} is for rtsp addresses, {parsed.title} is none")
    if options["realtime"] and (parsed.kind == "camera" or parsed.rtsp):
        raise click.UsageError(f"--realtime is for files and folders, {parsed.title} is live")
    if options["output"] is not None:
        check_output(options["output"], [source])


# --- one source


def _run_source(source: str, options: dict[str, Any]) -> int:
    from pyasc.agent.sources import quiet_opencv
    from pyasc.agent.stream import Stream

    quiet_opencv()
    with contextlib.ExitStack() as stack:
        # The cheap things first: a wrong address is told before a model is loaded.
        window = stack.enter_context(Window()) if options["show"] else None
        video = stack.enter_context(VideoFile(options["output"])) if options["output"] is not None else None
        stream = stack.enter_context(
            Stream(
                source,
                transport=options["transport"],
                realtime=options["realtime"],
                every=options["every"],
            )
        )
        analyzer = stack.enter_context(_analyzer(options))
        if video is not None:
            video.fps = stream.fps / options["every"]
        stop = stack.enter_context(signals())
        view = RunView(options["as_json"], name_pipelines=False)
        with view:
            frames = _follow(analyzer, stream, view, _Pictures(window, video), options["frames"], stop)
        view.summary(frames, stream.dropped)
        if video is not None and frames:
            view.note(f"video: {video.path}")
        view.raise_broken()
        return stop.exit_code


def _analyzer(options: dict[str, Any]) -> Any:
    from pyasc.agent.analyzer import EdgeAnalyzer
    from pyasc.plugins.base import load_plugin

    wanted = {
        "model": str(options["model"]),
        "device": options["device"],
        "confidence": options["confidence"],
        "threads": options["threads"],
    }
    if options["classes"] is not None:
        wanted["classes"] = tuple(name.strip() for name in options["classes"].split(",") if name.strip())
    detector = load_plugin(options["detector"], **{key: value for key, value in wanted.items() if value is not None})
    try:
        tracker = None
        if options["tracker"] != "none":
            model = options["tracker_model"]
            own = {} if model is None else {"model": str(model), "device": options["device"]}
            tracker = load_plugin(options["tracker"], **{key: value for key, value in own.items() if value is not None})
    except BaseException:
        detector.close()
        raise
    return EdgeAnalyzer(detector, tracker)


class _Pictures:
    """Annotates where somebody looks."""

    def __init__(self, window: Window | None, video: VideoFile | None) -> None:
        self._window, self._video = window, video

    def take(self, image: Any, found: Any) -> bool:
        """Write and show a picture; False when the user wants to end."""
        if self._window is None and self._video is None:
            return True
        from pyasc.agent.draw import draw

        drawn = draw(image.copy(), found)
        if self._video is not None:
            self._video.write(drawn)
        return self._window is None or self._window.show(drawn)


def _follow(analyzer: Any, stream: Any, view: RunView, pictures: _Pictures, limit: int | None, stop: Stop) -> int:
    """Take frame after frame until the end; returns how many."""
    from pyasc.agent.events import frame_message

    frames = 0
    rate = _Rate()
    try:
        with contextlib.closing(analyzer.steps(stream)) as steps:
            for step in steps:
                view.events(stream.source, step.events)
                if step.frame is not None:
                    frames += 1
                    rate.count()
                    view.tracks(stream.source, frame_message(step.found, step.frame))
                    if not pictures.take(step.frame.image, step.found):
                        break
                view.status(stream.source, _status(analyzer, stream, rate, step.found))
                if stop.wanted or view.broken or frames == limit:
                    break
    finally:
        view.events(stream.source, analyzer.events)
    return frames


def _status(analyzer: Any, stream: Any, rate: _Rate, found: Any) -> dict[str, Any]:
    return {
        "state": stream.state if stream.state != "ended" else "running",
        "reason": stream.reason,
        "fps": rate.value,
        "device": getattr(analyzer.detector, "device", None),
        "resolution": stream.resolution,
        "tracks": 0 if found is None else len(found),
    }


class _Rate:
    """Frames a second, anew about every second."""

    def __init__(self) -> None:
        self.value = 0.0
        self._since, self._frames = time.monotonic(), 0

    def count(self) -> None:
        self._frames += 1
        now = time.monotonic()
        if now - self._since >= _RATE_WINDOW_S:
            self.value = self._frames / (now - self._since)
            self._since, self._frames = now, 0
