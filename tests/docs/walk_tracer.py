"""Run a command line of ours and print the package's functions in the order of their first calls.

`python walk_tracer.py eval run CONFIG`: the last line of the output is a JSON list of
`file: function`, files relative to the package.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import osmosis_ai
from osmosis_ai.cli.main import main

PACKAGE = str(Path(osmosis_ai.__file__).parent) + "/"
called: dict[str, None] = {}


def trace(frame: FrameType, event: str, _argument: Any) -> None:
    """Remember a first call; dicts keep their order, and setdefault is safe between threads."""
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(PACKAGE):
        called.setdefault(f"{code.co_filename.removeprefix(PACKAGE)}: {code.co_name}", None)


if __name__ == "__main__":
    threading.setprofile(trace)
    sys.setprofile(trace)
    code = main()
    sys.setprofile(None)
    print(json.dumps(list(called)))
    sys.exit(code)
