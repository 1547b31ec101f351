#!/usr/bin/env bash
# Run a part of the suite that touches every layer on each other supported Python found here: on PATH, or among pyenv's.
# Versions that are not found are named; PYASC_ALL_PYTHONS=1 makes that a failure. Arguments go to pytest.
set -euo pipefail
main=$("${PYTHON:-python3}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# What another version breaks is seen here: metadata and public names, the reading of checkpoints and the numbers of the engine,
# the device's buffers, queues and threads, and the two processes of the agent with a broker. The rest is the same code as in make test.
# So is what the README's snippet does with each frame of its clip, in 22 s; that of the SDK's page runs here.
tests=(
    tests/test_packaging.py
    tests/test_public_api.py
    tests/hal/test_conformance.py
    tests/models/test_checkpoint.py
    tests/models/test_golden_detections.py
    tests/agent/test_agent.py::test_one_clip_gives_the_known_events_and_the_agent_ends_cleanly
    --deselect=tests/test_public_api.py::test_readme_snippet_tracks_the_person
)

# Print the path of a Python of version $1. A shim of pyenv lies on PATH for versions that it then refuses, so each is tried.
find_python() {
    local candidate
    for candidate in $(type -ap "python$1") "$(pyenv root 2>/dev/null || echo /nowhere)"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

missing=()
failed=()
for version in 3.10 3.11 3.12 3.13; do
    [ "$version" = "$main" ] && continue # make test does the whole suite with it
    python=$(find_python "$version") || { missing+=("$version"); continue; }
    venv=build/python-$version
    echo "python-versions: $version, $python"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --editable '.[demo,test]'
    "$venv/bin/python" -m pip install --quiet --no-deps trackeval==1.3.0
    "$venv/bin/python" -m pytest -q "${tests[@]}" "$@" || failed+=("$version")
done
[ ${#missing[@]} = 0 ] || echo "python-versions: not found and not tested: ${missing[*]}" >&2
[ ${#failed[@]} = 0 ] || { echo "python-versions: failed on ${failed[*]}" >&2; exit 1; }
[ ${#missing[@]} = 0 ] || [ "${PYASC_ALL_PYTHONS:-0}" != 1 ]
