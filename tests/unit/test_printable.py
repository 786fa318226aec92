"""What leaves for a terminal or a log has no character that a terminal obeys."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest

from synergon.cli.logs import FORMAT, PrintableFormatter
from synergon.model.printable import PrintableRecords, printable, printable_json

HOSTILE = {
    "CSI": "\x1b[31mred",
    "OSC 0": "\x1b]0;title\x07",
    "OSC 8": "\x1b]8;;http://evil\x1b\\link",
    "OSC 52": "\x1b]52;c;ZXZpbA==\x07",
    "C1": "\x9b31m\x85",
    "CR": "safe\roverwritten",
    "backspace": "a\x08b",
    "DEL": "\x7f",
    "NUL": "\x00",
    "bidi": "\u202egnp.exe\u202c \u2066x\u2069 \u200f\u061c",
    "line breaks": "one\ntwo\u2028three\u2029",
    "surrogate": "\udcff",
    "tags": "\U000e0041",
}

UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_control_characters_become_escapes(text: str) -> None:
    assert UNSEEN.isdisjoint(map(unicodedata.category, printable(text)))
    kept = printable(text, lines=True).replace("\n", "")
    assert UNSEEN.isdisjoint(map(unicodedata.category, kept))


def test_other_text_stays_as_it_is() -> None:
    text = "naïve 日本語 עברית 👩‍👩‍👧 [bold] \\x1b é\xa0"
    assert printable(text) == text
    assert printable("a\n\tb", lines=True) == "a\n\tb"
    assert printable("a\n\tb") == "a\\n\\tb"


@pytest.mark.parametrize("text", [text for name, text in HOSTILE.items() if name != "surrogate"])
def test_json_says_the_same_by_its_own_escapes(text: str) -> None:
    document = printable_json(json.dumps([text], ensure_ascii=False, indent=1).encode())
    assert json.loads(document) == [text]
    assert printable(document.decode(), lines=True) == document.decode()


def test_records_are_printable_for_every_handler() -> None:
    stream = io.StringIO()
    logger = logging.Logger("of an app")
    logger.addHandler(logging.StreamHandler(stream))
    logger.addFilter(PrintableRecords())
    try:
        raise ValueError("\x1b[31m\nforged")
    except ValueError as error:
        logger.exception("task %d (%s): %s; %r", 1, "\x9b1m", error, "\u202e")
    said = stream.getvalue()
    assert said.startswith(r"task 1 (\x9b1m): \x1b[31m\nforged; ")
    assert printable(said, lines=True) == said


def test_lines_of_the_worker_are_printable_whoever_logs() -> None:
    record = logging.LogRecord("other", logging.ERROR, "", 0, "\x1b]0;title\x07", None, None)
    line = PrintableFormatter(FORMAT, defaults={"node": "kim"}).format(record)
    assert printable(line) == line
