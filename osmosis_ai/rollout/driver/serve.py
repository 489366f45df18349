"""An entrypoint as a program: run as it is, then served where it has an app and does not listen.

`python -m osmosis_ai.rollout.driver.serve ENTRYPOINT ROOT...` is how drivers start a server, in any
environment that holds this package.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from osmosis_ai._extras import requires_extra
from osmosis_ai.errors import ConfigError
from osmosis_ai.launch import import_path
from osmosis_ai.redaction import hide_variables
from osmosis_ai.rollout.driver.lifeline import hold_lifeline
from osmosis_ai.rollout.raised import users_traceback

with requires_extra("server", "serving a rollout"):
    import uvicorn

PORT_VARIABLE = "_OSMOSIS_ROLLOUT_PORT"
"""Where the port is, for an entrypoint that listens by itself."""

LIFELINE_VARIABLE = "_OSMOSIS_ROLLOUT_LIFELINE"
"""The descriptor of a pipe whose end is that of the process group."""

DEFAULT_PORT = 8000


def serve_entrypoint(
    entrypoint: Path,
    import_roots: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    port_is_chosen: bool = False,
) -> None:
    """Run a file as `__main__`, and serve its `app` if that returns; blocks until it is stopped.

    Raises ConfigError for a file that neither listens nor has an `app`, and where `port_is_chosen`
    by a person for a port that is in use.
    """
    os.environ[PORT_VARIABLE] = str(port)
    with import_path(import_roots):
        app = getattr(_run_as_main(entrypoint), "app", None)
        if app is None:
            raise ConfigError(
                f"{entrypoint} neither listens nor has an `app`: give it, at module level, "
                "`app = create_rollout_server(backend=backend)`",
                key="entrypoint",
            )
        if port_is_chosen:
            _check_free(host, port)
        uvicorn.run(app, host=host, port=port, log_config=None, access_log=False, ws="none")


def _check_free(host: str, port: int) -> None:
    """Say it in a sentence where somebody else listens there; uvicorn says it in its log."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {host}:{port}: {os.strerror(error.errno or 0)}; choose another port "
            "with --port",
            key="port",
        ) from error


def _run_as_main(entrypoint: Path) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = str(entrypoint)
    # Before it runs: pickles and `"__main__:MyWorkflow"` paths look it up there.
    sys.modules["__main__"] = module
    sys.argv[:] = [str(entrypoint)]
    exec(compile(entrypoint.read_bytes(), str(entrypoint), "exec"), vars(module))
    return module


def main(arguments: Sequence[str]) -> None:
    """Serve what a driver names, on the port that the environment names."""
    lifeline = os.environ.pop(LIFELINE_VARIABLE, None)
    if lifeline is not None:
        hold_lifeline(int(lifeline))
    hide_variables()
    sys.excepthook = _print_users_part
    entrypoint, *roots = map(Path, arguments)
    serve_entrypoint(entrypoint, roots, port=int(os.environ.get(PORT_VARIABLE, DEFAULT_PORT)))


def _print_users_part(
    kind: type[BaseException], error: BaseException, _: TracebackType | None
) -> None:
    """The way to the user's code is the launcher's, and no news to anybody."""
    sys.stderr.write("".join(users_traceback(error)))


if __name__ == "__main__":
    main(sys.argv[1:])
