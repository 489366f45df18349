"""Addresses for servers elsewhere: what may be given, and what is refused in words."""

from __future__ import annotations

import pytest

from osmosis_ai.rollout.driver.listener_spec import (
    ListenerSpec,
    check_advertise_url,
    check_listen,
    is_loopback,
    split_listen,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0:9000", "0.0.0.0", 9000),
        ("my-machine:0", "my-machine", 0),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert check_listen(text) == text
    assert split_listen(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "9000", ":9000", "host:", "host:x", "host:65536", "::1:9000", "http://h:1", "a b:1"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be HOST:PORT, such as"):
        check_listen(text)


@pytest.mark.parametrize(
    "url", ["http://my-machine:9000", "https://x.example/osmosis", "http://[::1]"]
)
def test_an_advertised_url_is_an_address(url: str) -> None:
    assert check_advertise_url(url + "/") == url


@pytest.mark.parametrize(
    "url",
    [
        "my-machine:9000",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://x:0",
        "http://x?y=1",
        "http://x#y",
        "http://x y",
        "http://[::1",
    ],
)
def test_what_no_client_can_call_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="must be the address at which servers reach"):
        check_advertise_url(url)


def test_without_an_address_it_is_this_machine_alone() -> None:
    spec = ListenerSpec.parse(None)
    assert (spec.host, spec.port, spec.is_loopback, spec.is_wildcard) == (
        "127.0.0.1",
        0,
        True,
        False,
    )


def test_what_is_advertised_says_who_reaches_it() -> None:
    open_to_all = ListenerSpec.parse("0.0.0.0:9000", advertise_url="http://gpu-box:9000")
    assert (open_to_all.is_wildcard, open_to_all.is_loopback) == (True, False)
    assert ListenerSpec.parse("[::]:1", advertise_url="http://localhost:1").is_loopback
    assert not ListenerSpec.parse("gpu-box:9000").is_loopback


@pytest.mark.parametrize(
    ("url", "found"),
    [("http://127.0.0.1:1", True), ("http://[::1]", True), ("http://gpu-box", False), ("x", False)],
)
def test_an_address_of_the_machine_itself_is_known(url: str, found: bool) -> None:
    assert is_loopback(url) is found
