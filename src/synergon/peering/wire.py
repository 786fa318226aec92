"""What peers say to each other.

A message carries hints and nothing else: lose it, repeat it, delay it or forge it, and only latency suffers. Two
messages for the same peer can always be merged into one, so that nothing is dropped because a peer is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from synergon.errors import SynergonError

PROTOCOL: Final = 1
PATH: Final = "/peer/v1"
SIZE_LIMIT: Final = 64 * 1024

LOOK: Final = 0
"""In a list of ids: too many to name, look for yourself. No task has this id."""

MOST_IDS: Final = 4000
"""With more than this a list of ids says LOOK instead; they would not fit into a message."""


class WireError(SynergonError):
    """A message that this version cannot read."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who the sender is. The receiver believes the node table, not this; it is the reason to look there."""

    id: str
    version: str
    address: str | None = None
    kinds: tuple[str, ...] = ()
    bye: bool = False
    """It leaves."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that one peer has to tell another one at a moment."""

    v: int
    hello: Hello | None = None
    new: dict[str, int] = {}
    """There is this much work of these kinds."""
    due: bool = False
    """Something was scheduled: look at the clock."""
    started: dict[str, int] = {}
    """It is taken, lower your hopes."""
    reserve: tuple[int, ...] = ()
    """The sender keeps room for these tasks."""
    freed: tuple[str, ...] = ()
    """These servers and limits have room again."""
    done: tuple[int, ...] = ()
    """Tasks that may have ended, and that somebody at the receiver may wait for."""
    awaited: tuple[int, ...] = ()
    """Tasks that somebody at the sender waits for, though another engine has enqueued them."""
    ended: bool = False
    """Something has ended, and somebody at the receiver may follow all that does."""
    follow: bool = False
    """Somebody at the sender follows all that ends."""
    cancel: tuple[int, ...] = ()
    """Tasks that run at the receiver, and that somebody wants cancelled."""
    control: bool = False
    """Something else has changed: read again."""
    free: int | None = None
    """The sender's free slots."""
    full: tuple[str, ...] = ()
    """In an answer: of these kinds the sender can start nothing now, whatever slots it has."""


def message(
    *,
    hello: Hello | None = None,
    new: Mapping[str, int] | None = None,
    due: bool = False,
    started: Mapping[str, int] | None = None,
    reserve: tuple[int, ...] = (),
    freed: tuple[str, ...] = (),
    done: tuple[int, ...] = (),
    awaited: tuple[int, ...] = (),
    ended: bool = False,
    follow: bool = False,
    cancel: tuple[int, ...] = (),
    control: bool = False,
    free: int | None = None,
    full: tuple[str, ...] = (),
) -> Message:
    """A message of this version."""
    return Message(
        v=PROTOCOL,
        hello=hello,
        new=dict(new or {}),
        due=due,
        started=dict(started or {}),
        reserve=reserve,
        freed=freed,
        done=done,
        awaited=awaited,
        ended=ended,
        follow=follow,
        cancel=cancel,
        control=control,
        free=free,
        full=full,
    )


EMPTY: Final = message()


def merged(earlier: Message, later: Message) -> Message:
    """Both in one: what the receiver does about it is what it would do about the two."""
    if earlier is EMPTY or later is EMPTY:
        return earlier if later is EMPTY else later
    return Message(
        v=PROTOCOL,
        hello=later.hello or earlier.hello,
        new=_sums(earlier.new, later.new),
        due=earlier.due or later.due,
        started=_sums(earlier.started, later.started),
        reserve=_union(earlier.reserve, later.reserve),
        freed=tuple(dict.fromkeys(earlier.freed + later.freed)),
        done=_union(earlier.done, later.done),
        awaited=_union(earlier.awaited, later.awaited),
        ended=earlier.ended or later.ended,
        follow=earlier.follow or later.follow,
        cancel=_union(earlier.cancel, later.cancel),
        control=earlier.control or later.control,
        free=later.free if later.free is not None else earlier.free,
        full=later.full or earlier.full,
    )


def _sums(earlier: dict[str, int], later: dict[str, int]) -> dict[str, int]:
    if not earlier or not later:
        return earlier or later
    return dict(Counter(earlier) + Counter(later))


def _union(earlier: tuple[int, ...], later: tuple[int, ...]) -> tuple[int, ...]:
    if not earlier or not later:
        return _bounded(earlier or later)
    return _bounded(tuple(dict.fromkeys(earlier + later)))


def _bounded(ids: tuple[int, ...]) -> tuple[int, ...]:
    return (LOOK,) if LOOK in ids or len(ids) > MOST_IDS else ids


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


def encode(sent: Message) -> bytes:
    """The message as JSON, never over the limit: what would not fit becomes an advice to look."""
    body = _encoder.encode(sent)
    if len(body) <= SIZE_LIMIT:
        return body
    return _encoder.encode(
        message(
            hello=None if sent.hello is None else msgspec.structs.replace(sent.hello, kinds=()),
            due=sent.due,
            done=(LOOK,) if sent.done else (),
            ended=sent.ended,
            follow=sent.follow,
            cancel=(LOOK,) if sent.cancel else (),
            control=True,
            free=sent.free,
        )
    )


class _Version(msgspec.Struct):
    v: int


NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What is not UTF-8, or nested without end, is none, either."""


def decode(body: bytes) -> Message:
    """The message; WireError if it is of another version or makes no sense."""
    try:
        try:
            found = _decoder.decode(body)
        except NOT_JSON:
            version = msgspec.json.decode(body, type=_Version).v
            if version == PROTOCOL:
                raise
        else:
            version = found.v
            if version == PROTOCOL:
                return found
    except NOT_JSON as error:
        raise WireError(f"this is not a message of peers: {error}") from None
    raise WireError(
        f"the sender speaks version {version} of the peers' protocol and this node speaks {PROTOCOL}; "
        "run the same release of synergon on all nodes"
    )
