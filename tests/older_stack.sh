#!/usr/bin/env bash
# Run the suite on NumPy 1.26, OpenCV 4 and tflite-runtime 2.14: first with tflite-runtime forced, as conversion always needs
# ai-edge-litert, whose package has the schema of .tflite files; then without ai-edge-litert what chooses between the engines that
# are left. Arguments go to pytest.
set -euo pipefail
python=${PYTHON:-python3}
venv=${OLDER_VENV:-build/older-venv}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
3.10 | 3.11) ;;
*) echo "older-stack: tflite-runtime 2.14 has wheels for Python 3.10 and 3.11 only, this is $version; set PYTHON" >&2; exit 1 ;;
esac
# A forced tflite-runtime leaves no engine for ONNX, which these also ask of the cpu.
engines=(tests/hal tests/cli/test_devices.py tests/cli/test_inspect.py)
# The agent's control process loads neither NumPy, OpenCV nor an engine (a contract of import-linter, and test_agent.py checks the
# running one): its own tests, a third of the suite's time, would repeat what make test has shown.
# So would the README's snippet with the demo, on the same clip.
control=(tests/agent/test_{config,control,mqtt,settings,spool,systemd}.py)

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --editable '.[demo,test,tflite-runtime]' 'opencv-python-headless<5'
"$venv/bin/python" -m pip install --quiet --no-deps trackeval==1.3.0
"$venv/bin/python" -c 'import cv2, numpy, tflite_runtime as tflite
print("older-stack: NumPy", numpy.__version__, "OpenCV", cv2.__version__, "tflite-runtime", tflite.__version__)'
PYASC_CPU_ENGINE=tflite-runtime "$venv/bin/python" -m pytest -q "${engines[@]/#/--ignore=}" "${control[@]/#/--ignore=}" \
    --deselect=tests/test_public_api.py::test_readme_snippet_tracks_the_person "$@"
"$venv/bin/python" -m pip uninstall --quiet --yes ai-edge-litert
"$venv/bin/python" -m pytest -q "${engines[@]}" "$@"
