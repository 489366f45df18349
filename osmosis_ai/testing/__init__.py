"""For the tests of rollouts: a model that says what you tell it, and tiny workflows and graders.

The suites for authors of backends and drivers are in modules of their own, since they need pytest.
"""

from osmosis_ai.testing.replies import (
    Gate,
    HangUp,
    Held,
    HttpReply,
    Signal,
    StreamReply,
    call_tool,
)
from osmosis_ai.testing.scripted_model import LoggedCall, ScriptedModel
from osmosis_ai.testing.workflows import (
    ChatWorkflow,
    EchoWorkflow,
    ExactMatchGrader,
    FailingWorkflow,
    RemovingGrader,
    ask_model,
)

__all__ = [
    "ChatWorkflow",
    "EchoWorkflow",
    "ExactMatchGrader",
    "FailingWorkflow",
    "Gate",
    "HangUp",
    "Held",
    "HttpReply",
    "LoggedCall",
    "RemovingGrader",
    "ScriptedModel",
    "Signal",
    "StreamReply",
    "ask_model",
    "call_tool",
]
