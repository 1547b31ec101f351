"""The control process with another engine: `run_control.py agent.yaml ENGINE …`."""

from __future__ import annotations

import sys
from pathlib import Path

from pyasc.agent import apply, control, publisher, supervisor
from pyasc.agent.settings import load_settings
from pyasc.errors import PyascError

apply.PROVE_TIMEOUT_S = 3.0
publisher.HOLD_S = 1.0
supervisor.HANG_TIMEOUT_S = 3.0
try:
    control.run(load_settings(Path(sys.argv[1])), tuple(sys.argv[2:]) or control.ENGINE_COMMAND)
except PyascError as error:
    sys.exit(str(error))
heavy = sorted({"numpy", "cv2", "pyasc.hal", "pyasc.models", "pyasc.plugins", "pyasc.runtime"} & set(sys.modules))
print(f"heavy modules: {heavy}", file=sys.stderr)
