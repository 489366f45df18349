"""Serve a backend over HTTP: the documented front door of the rollout server."""

from osmosis_ai._extras import requires_extra

with requires_extra("server", "create_rollout_server"):
    from osmosis_ai.rollout.http import ControllerAuth
    from osmosis_ai.rollout.server.app import create_rollout_server

__all__ = ["ControllerAuth", "create_rollout_server"]
