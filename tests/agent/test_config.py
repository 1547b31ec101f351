"""The configuration document and the reading of hostile YAML and JSON."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pyasc.agent.config import MAX_FAULTS, check_version, digest, parse_document, schema, validate
from pyasc.agent.document import MAX_DEPTH, MAX_DOCUMENT_BYTES
from pyasc.agent.masking import mask
from pyasc.errors import ConfigError, ConfigFault

GATE = """
version: 7
pipelines:
  gate:
    source: {url: rtsp://10.0.0.5/stream1}
    detector: {plugin: yolov5, model: yolov5s.asc, confidence: 0.25, classes: [person, car]}
    route: [{when: "resolution > 1080", device: mlu220}, {device: hi3559}]
    tracker: {plugin: deepsort, model: osnet_x0_25.asc, device: npu}
    zones: {door: [[0.1, 0.2], [0.4, 0.2], [0.4, 0.9], [0.1, 0.9]]}
    lines: {gateway: [[0.0, 0.5], [1.0, 0.5]]}
"""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    (folder / "people").mkdir(parents=True)
    for name in ("yolov5s.asc", "osnet_x0_25.asc", "people/n.asc"):
        (folder / name).write_bytes(b"")
    (tmp_path / "secret.asc").write_bytes(b"")
    (folder / "link.asc").symlink_to(tmp_path / "secret.asc")
    return folder


def faults(document: dict[str, Any], model_dir: Path | None = None) -> dict[str, str]:
    found = validate(document, model_dir=model_dir)
    assert len({fault.path for fault in found}) == len(found), "each place is named once"
    return dict(found)


def changed(**parts: Any) -> dict[str, Any]:
    """The example with parts of its pipeline replaced; None takes one out."""
    document = parse_document(GATE)
    gate = {**document["pipelines"]["gate"], **parts}
    return {"version": 7, "pipelines": {"gate": {key: value for key, value in gate.items() if value is not None}}}


def test_the_documented_example_is_sound(model_dir: Path) -> None:
    document = parse_document(GATE)
    assert validate(document, model_dir=model_dir) == []
    assert document["pipelines"]["gate"]["route"][0] == {"when": "resolution > 1080", "device": "mlu220"}


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_every_fault_is_named_by_its_path(model_dir: Path) -> None:
    document = parse_document("""
version: -1
colour: red
pipelines:
  a/b: {source: {url: x}, detector: {plugin: p, model: yolov5s.asc}}
  number: 3
  gate:
    source: {url: "foo://10.0.0.5/stream1", evry: 2, every: 0}
    detector: {plugin: yolov5, model: absent.asc, device: CPU}
    route: [{when: "lines > 3", device: mlu220}, {device: 3}, {when: ""}]
    tracker: {modl: osnet_x0_25.asc, device: npu}
    zones:
      far: [[0.1, 0.2], [0.4, 0.2], [0.4, 9]]
      two: [[0, 0], [1, 1]]
      bow: [[0, 0], [1, 1], [1, 0], [0, 0.5]]
    lines: {gateway: [[0.0, 0.5], [0, 0.5]]}
""")
    found = faults(document, model_dir)
    expected = {
        "version": "-1 is below 0",
        "colour": "unknown key",
        'pipelines["a/b"]': "the name must be 1 to 64 letters",
        "pipelines.number": "must be a mapping, not a number",
        "pipelines.gate.source.url": "scheme 'foo' is not one of rtsp",
        "pipelines.gate.source.evry": "unknown key (did you mean `every`?)",
        "pipelines.gate.source.every": "0 is below 1",
        "pipelines.gate.detector.model": "there is no file 'absent.asc'",
        "pipelines.gate.detector.device": '"CPU" does not fit: A device as',
        "pipelines.gate.route[0].when": "'lines' in 'lines > 3': expected one of resolution",
        "pipelines.gate.route[1].device": "must be text, not a number",
        "pipelines.gate.route[2].device": "required",
        "pipelines.gate.route[2].when": "must not be empty",
        "pipelines.gate.tracker.plugin": "required",
        "pipelines.gate.zones.far[2][1]": "9 is above 1",
        "pipelines.gate.zones.two": "has 2 entries, at least 3 are needed",
        "pipelines.gate.zones.bow": "the side from corner 0 crosses the side from corner 2",
        "pipelines.gate.lines.gateway": "the two ends are the same point",
    }
    assert set(found) == set(expected)
    for path, start in expected.items():
        assert found[path].startswith(start), path


@pytest.mark.parametrize("document", [{}, {"version": 1}, {"pipelines": {}}, {"version": 1, "pipelines": {"a": {}}}])
def test_missing_parts_are_required(document: dict[str, Any]) -> None:
    assert set(faults(document).values()) == {"required"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("/etc/passwd", "not a name below the model folder"),
        ("../secret.asc", "not a name below the model folder"),
        ("people/../../secret.asc", "not a name below the model folder"),
        ("link.asc", "is a link to"),
        ("people", "there is no file"),
        ("absent.asc", "there is no file"),
        ("nul\0.asc", "not a name below"),
        ("a" * 256, "at most 255"),
        ("a" * 250 + "/b", "there is no file"),
    ],
)
def test_model_outside_or_absent_is_refused(model_dir: Path, name: str, says: str) -> None:
    found = faults(changed(detector={"plugin": "yolov5", "model": name}), model_dir)
    assert list(found) == ["pipelines.gate.detector.model"]
    assert says in found["pipelines.gate.detector.model"]


def test_model_in_a_folder_below_is_taken(model_dir: Path) -> None:
    assert faults(changed(detector={"plugin": "yolov5", "model": "people/n.asc"}), model_dir) == {}


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ({"url": ""}, "url"),
        ({"url": " clip.mp4"}, "url"),
        ({"url": "rtsp:///stream"}, "url"),
        ({"url": "rtsp://host:port/stream"}, "url"),
        ({"url": "javascript://x"}, "url"),
        ({"url": "clip.mp4", "transport": "tcp"}, "transport"),
        ({"url": "rtsp://a/b", "transport": "tls"}, "transport"),
        ({"url": "rtsp://a/b", "loop": True}, "loop"),
        ({"url": "http://a/b", "realtime": True}, "realtime"),
        ({"url": "clip.mp4", "every": 1.5}, "every"),
        ({"url": "clip.mp4", "every": True}, "every"),
        ({"url": "clip.mp4", "loop": "yes"}, "loop"),
    ],
)
def test_source_that_cannot_work_is_refused(source: dict[str, Any], path: str) -> None:
    assert list(faults(changed(source=source))) == [f"pipelines.gate.source.{path}"]


@pytest.mark.parametrize(
    "url",
    [
        "clip.mp4",
        "/data/clip a.mp4",
        "file:///data/clip.mp4",
        "/dev/video0",
        "frames/",
        "https://h:81/x",
        "rtsp://[::1]/x",
    ],
)
def test_sources_of_every_kind_are_taken(url: str) -> None:
    assert faults(changed(source={"url": url})) == {}


def test_device_that_the_route_never_leaves_to_is_refused() -> None:
    detector = {"plugin": "yolov5", "model": "m.asc", "device": "cpu"}
    assert list(faults(changed(detector=detector))) == ["pipelines.gate.detector.device"]
    assert faults(changed(detector=detector, route=[{"when": "fps > 30", "device": "gpu"}])) == {}
    assert faults(changed(detector=detector, route=None)) == {}


def test_options_of_plugins_are_left_to_the_engine() -> None:
    assert faults(changed(tracker={"plugin": "mine", "anything": [1, {"deep": None}]})) == {}


def test_secrets_do_not_get_into_faults() -> None:
    found = faults(changed(source={"url": "foo://admin:hunter2@10.0.0.5/s?token=abc", "loop": 3}))
    assert "hunter2" not in str(found)
    assert mask("a rtsp://u:p@ss@h/s?password=x&a=1, 'token': 'y'") == "a rtsp://***@h/s?password=***&a=1, 'token': ***"
    assert (
        mask("mail an@example.com, http://h/p@q, passwords: 3 tokens")
        == "mail an@example.com, http://h/p@q, passwords: 3 tokens"
    )


def test_faults_are_bounded() -> None:
    assert len(validate({f"k{i}": 1 for i in range(5000)}, model_dir=None)) == MAX_FAULTS


def test_versions() -> None:
    assert check_version(3, "a", None) is None
    assert check_version(3, "a", (2, "b")) is None
    assert check_version(3, "a", (3, "a")) is None
    assert check_version(2, "a", (3, "b")) == ConfigFault("version", "2 is stale: version 3 is applied")
    same = check_version(3, "a", (3, "b"))
    assert same is not None
    assert "other content" in same.message


def test_digest_is_of_the_content() -> None:
    document = parse_document(GATE)
    assert digest(parse_document(json.dumps(document))) == digest(document)
    # printf '{"a":1,"b":"ü"}' | sha256sum
    assert digest({"b": "ü", "a": 1}) == "1a59e522e02ce50ad2c27c11a6d30f8667489c199580627fe9e3e33e2b0e91d5"
    assert digest(changed(route=None)) != digest(document)


@pytest.mark.parametrize("key", ["zones", "lines", "publish_tracks"])
def test_what_needs_a_tracker(key: str) -> None:
    value = {"zones": {"a": [[0, 0], [1, 0], [1, 1]]}, "lines": {"a": [[0, 0], [1, 1]]}, "publish_tracks": True}[key]
    pipeline = {"source": {"url": "x"}, "detector": {"plugin": "p"}, key: value}
    assert faults({"version": 1, "pipelines": {"g": pipeline}}) == {f"pipelines.g.{key}": "needs a tracker"}
    pipeline["tracker"] = {"plugin": "p"}
    assert faults({"version": 1, "pipelines": {"g": pipeline}}) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("# nothing\n", "empty"),
        ("[1]", "a list, not a mapping"),
        ("a: 1\na: 2", "line 2, column 1: duplicate key 'a'"),
        ('{"a": {"b": 1, "b": 2}}', "duplicate key 'b'"),
        ("a: &x [1]\nb: *x", "line 1, column 4: anchors"),
        ("a: !!python/object/apply:os.system [true]", "tag"),
        ("<<: {a: 1}", "'<<'"),
        ("1: 2", "line 1, column 1: the key 1 is not text"),
        ("a: 1\n---\nb: 2", "second document"),
        ("a: .nan", "not a finite number"),
        ("a: -.Inf", "not a finite number"),
        ("a: 1e999", "out of range"),
        ('{"a": NaN}', "not a finite number"),
        ('{"a": 1e999}', "out of range"),
        ("a: " + "9" * 5000, "out of range"),
        ('{"a": ' + "9" * 5000 + "}", ""),
        ("a: [", "not YAML: line"),
        (b"a: \xff", "UTF-8"),
        (b"\x00", "not YAML"),
        ("a: " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "deeper"),
        ("[" * 100_000, "nest"),
        ('{"a":' * 40_000, "deeper"),
        ("a" * (MAX_DOCUMENT_BYTES + 1), "limit"),
    ],
)
def test_hostile_text_is_refused_in_one_line(text: str | bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text)
    message = str(caught.value)
    assert says in message
    assert len(message) < 300
    assert "\n" not in message


def test_laughing_aliases_do_not_expand() -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40))]
    with pytest.raises(ConfigError, match="anchors and aliases"):
        parse_document("\n".join(lines))


def test_plain_words_and_times_stay_text() -> None:
    text = "a: [no, on, yes, 12:30, 2020-01-01, 0x10, 1_000, '3', ~, true, -4, 2.5, 1e3]"
    expected = ["no", "on", "yes", "12:30", "2020-01-01", "0x10", "1_000", "3", None, True, -4, 2.5, 1000.0]
    assert parse_document(text)["a"] == expected


@given(st.one_of(st.text(max_size=200), st.binary(max_size=200)))
def test_any_text_gives_a_mapping_or_a_config_error(text: str | bytes) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse_document(text), dict)


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), _VALUES, max_size=4))
def test_json_comes_back_as_it_was(document: dict[str, Any]) -> None:
    assert parse_document(json.dumps(document)) == document


_WORDS = st.text(st.characters(codec="ascii", min_codepoint=32)).map(lambda text: f"t{text}")


@given(st.dictionaries(_WORDS, st.lists(_WORDS | st.integers(-9999, 9999) | st.booleans() | st.none()), max_size=4))
def test_yaml_comes_back_as_the_library_wrote_it(document: dict[str, Any]) -> None:
    text = yaml.safe_dump(document) if document else "{}"
    assert parse_document(text) == document


@settings(max_examples=150)
@given(
    st.dictionaries(st.sampled_from(["version", "pipelines", "x"]), _VALUES, max_size=3),
    st.dictionaries(st.text(), _VALUES),
)
def test_any_document_gives_faults_and_no_exception(document: dict[str, Any], pipeline: dict[str, Any]) -> None:
    validate(document, model_dir=Path("/nonexistent"))
    keys = ("source", "detector", "route", "tracker", "zones", "lines")
    hostile = dict(zip(keys, pipeline.values(), strict=False))
    assert validate({"version": 1, "pipelines": {"a": hostile}}, model_dir=Path("/nonexistent"))
