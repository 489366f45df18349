"""What programs write into a log: all of it, but no secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from osmosis_ai.log_file import last_words

PROGRAM = """
import subprocess, sys
from pathlib import Path
from osmosis_ai.log_file import LogSink
from osmosis_ai.redaction import hide

hide([value for value in sys.argv[2:]])
sink = LogSink(Path(sys.argv[1]))
with sink.writable() as output:
    child = subprocess.Popen(
        ["sh", "-c", "echo one; echo key=hunter2; printf '\\\\377 last'"], stdout=output
    )
assert child.wait() == 0
print(sink.last_words())
"""


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
"""
ROOM_AGAIN = "resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))"


def shown(path: Path, *secrets: str, before: str = "", after: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM + after, str(path), *secrets],
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout


def test_without_secrets_the_file_itself_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    assert shown(log) == "one\nkey=hunter2\n\ufffd last\n"


def test_secrets_are_left_out_and_every_other_byte_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"before\n")
    assert shown(log, "hunter2") == "one\nkey=[REDACTED]\n\ufffd last\n"
    assert log.read_bytes() == b"before\none\nkey=[REDACTED]\n\xff last"


def test_a_disk_that_takes_no_more_does_not_stop_the_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert shown(log, "hunter2", before=FULL, after=ROOM_AGAIN) == "one\nkey=\n"


def test_the_end_of_a_long_log_is_its_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert last_words(log).splitlines() == [f"line {number}" for number in range(9_980, 10_000)]
