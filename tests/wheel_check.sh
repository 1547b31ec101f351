#!/usr/bin/env bash
# Build the wheel from a clean copy of the commit, install it into a new environment, and run the short demo outside the checkout.
set -euo pipefail
checkout=$(pwd)
python=${PYTHON:-python3}
build_python=${BUILD_PYTHON:-$python}
[[ $build_python == */* ]] && build_python=$(realpath -s "$build_python")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$checkout" archive HEAD | tar -x -C "$(mkdir -p "$work/source" && echo "$work/source")"
"$build_python" -m build --wheel --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 || { tail -20 "$work/build.log"; exit 1; }
"$python" -m venv "$work/venv"
wheel=$(ls "$work"/dist/*.whl)
"$work/venv/bin/pip" install --quiet "$wheel"
cd "$work"
echo "core install: $(du -sm "$work"/venv/lib/python3*/site-packages --exclude=pip --exclude=setuptools | cut -f1) MB in site-packages"
"$work/venv/bin/python" - <<'PY'
import importlib.metadata as metadata
tops = {file.parts[0] for file in metadata.files("pyasc") if file.suffix == ".py"}
assert tops == {"pyasc"}, f"the wheel installs more than pyasc: {tops}"
PY
"$work/venv/bin/pyasc" devices
"$work/venv/bin/pip" install --quiet "$wheel[demo]"
"$work/venv/bin/pyasc" demo --short --data "$checkout/demo" --output "$work/demo-output"
test -s "$work/demo-output/events.jsonl"
echo "wheel-check: 1 wheel works outside the checkout"
