"""What is to be hidden is found in every form in which others write it."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from osmosis_ai.redaction import SECRET_NAMES_VARIABLE, Redactor

SECRET = 'p\u00e4ss "w\\rd"/1+2'


@pytest.fixture
def redactor() -> Redactor:
    redactor = Redactor()
    redactor.hide([SECRET])
    return redactor


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        json.dumps(SECRET),
        json.dumps(SECRET, ensure_ascii=False),
        repr(SECRET),
        quote(SECRET, safe=""),
        f"https://x?key={quote(SECRET, safe='')}&more",
    ],
)
def test_each_form_is_found(redactor: Redactor, form: str) -> None:
    shown = redactor.redact(f"before {form} after")
    assert "[REDACTED]" in shown
    assert "w" not in shown.replace("before", "").replace("after", "").replace("https://x?key=", "")


def test_a_text_without_secrets_stays(redactor: Redactor) -> None:
    assert redactor.redact("pass word") == "pass word"
    assert Redactor().redact(SECRET) == SECRET


def test_of_two_secrets_the_longer_is_looked_for_first() -> None:
    redactor = Redactor()
    redactor.hide(["hunter", "hunter2"])
    assert redactor.redact("hunter2 hunter") == "[REDACTED] [REDACTED]"


def test_a_short_value_is_no_secret() -> None:
    """It would be found in words and numbers that have nothing to do with it."""
    redactor = Redactor()
    redactor.hide(["abc", ""])
    assert not redactor.hides_something()
    assert redactor.redact("abc") == "abc"


def test_what_was_hidden_once_stays_so(redactor: Redactor) -> None:
    redactor.hide(["hunter2"])
    redactor.hide(["hunter2"])
    assert redactor.redact(f"{SECRET}hunter2") == "[REDACTED][REDACTED]"


def test_variables_are_hidden_by_their_names() -> None:
    redactor = Redactor()
    redactor.hide_variables(
        {SECRET_NAMES_VARIABLE: "A,B,C", "A": "first", "B": "second", "D": "fine"}
    )
    assert redactor.redact("first second fine") == "[REDACTED] [REDACTED] fine"
    redactor.hide_variables({})


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_without_its_secrets_is_one(redactor: Redactor, indent: int | None) -> None:
    """A number may have the digits of a secret, and is no text that could be replaced."""
    redactor.hide(["123456"])
    document = {
        "text": f"say {SECRET}",
        SECRET: [1, None, {"arguments": json.dumps({"key": SECRET})}],
        "tokens": 1234567,
        "big": 2**80,
    }
    data = json.dumps(document, ensure_ascii=False, indent=indent).encode() + b"\n"
    shown = redactor.redact_json(data)
    assert json.loads(shown) == {
        "text": "say [REDACTED]",
        "[REDACTED]": [1, None, {"arguments": '{"key": "[REDACTED]"}'}],
        "tokens": 1234567,
        "big": 2**80,
    }
    assert shown.endswith(b"\n")
    assert (b"\n " in shown) is (indent is not None)


def test_a_document_that_holds_none_keeps_its_bytes(redactor: Redactor) -> None:
    data = b'{"a":  1.0}'
    assert redactor.redact_json(data) is data
    assert Redactor().redact_json(data) is data
    assert redactor.redact_json(json.dumps([SECRET]).encode()) == b'["[REDACTED]"]'
