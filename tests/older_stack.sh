#!/usr/bin/env bash
# Run the suite again on NumPy 1.26, OpenCV 4 and tflite-runtime 2.14, then the device tests with ai-edge-litert absent.
# Conversion itself always needs ai-edge-litert, whose package has the schema of .tflite files. Arguments go to pytest.
set -euo pipefail
python=${PYTHON:-python3}
venv=${OLDER_VENV:-build/older-venv}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
3.10 | 3.11) ;;
*) echo "older-stack: tflite-runtime 2.14 has wheels for Python 3.10 and 3.11 only, this is $version; set PYTHON" >&2; exit 1 ;;
esac
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --editable '.[demo,test,tflite-runtime]' 'opencv-python-headless<5'
"$venv/bin/python" -m pip install --quiet --no-deps trackeval==1.3.0
"$venv/bin/python" -c 'import cv2, numpy, tflite_runtime as tflite
print("older-stack: NumPy", numpy.__version__, "OpenCV", cv2.__version__, "tflite-runtime", tflite.__version__)'
PYASC_CPU_ENGINE=tflite-runtime "$venv/bin/python" -m pytest "$@"
"$venv/bin/python" -m pip uninstall --quiet --yes ai-edge-litert
"$venv/bin/python" -m pytest tests/hal "$@"
