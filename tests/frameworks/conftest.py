"""These tests run in the environments of the frameworks, and reach nothing but this machine."""

from __future__ import annotations

import os

# Before anything imports LiteLLM: else the import asks the network for a table of prices.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
# Nor is anybody to be told of these runs.
os.environ.setdefault("LANGSMITH_TRACING", "false")
