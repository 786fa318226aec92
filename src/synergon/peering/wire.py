"""The messages between peers, and their encoding.

A message contains only hints: if it is lost, repeated, delayed or forged, only latency suffers. Any two messages for
one peer can be merged into one, so no hint is dropped because a peer is slow.
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

TOO_MANY_IDS: Final = 0
"""Replaces a list of ids that is too long for a message. The receiver then reads the store. No task has this id."""

MAX_IDS: Final = 4000
"""The maximum length of a list of ids. A longer list is replaced by TOO_MANY_IDS."""


class WireError(SynergonError):
    """A message that this version cannot decode."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sender's identity. The receiver does not trust it: a hello only makes it read the node table."""

    id: str
    version: str
    address: str | None = None
    kinds: tuple[str, ...] = ()
    bye: bool = False
    """Whether the sender is leaving."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All hints that one peer sends another at a time."""

    v: int
    hello: Hello | None = None
    new: dict[str, int] = {}
    """The number of new ready tasks, by kind."""
    due: bool = False
    """Whether tasks were scheduled for later. The receiver then checks its alarm."""
    started: dict[str, int] = {}
    """The number of tasks that the sender has started, by kind."""
    reserve: tuple[int, ...] = ()
    """Tasks for which the sender has reserved capacity."""
    freed: tuple[str, ...] = ()
    """Limits and pools that have free permits again."""
    done: tuple[int, ...] = ()
    """Tasks that may have ended, and that the receiver may wait for."""
    awaited: tuple[int, ...] = ()
    """Tasks that the sender waits for although another engine enqueued them."""
    ended: bool = False
    """Whether a task has ended. Sent to receivers that asked for this with `follow`."""
    follow: bool = False
    """Whether the sender asks for a hint whenever any task ends."""
    cancel: tuple[int, ...] = ()
    """Tasks that run at the receiver and whose cancellation was requested."""
    control: bool = False
    """Whether limits, servers, pauses or operator actions have changed. The receiver then reads them again."""
    free: int | None = None
    """The number of free slots of the sender. None if it runs no tasks."""
    full: tuple[str, ...] = ()
    """In an answer: kinds for which the sender has no capacity now."""


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
    """A message of this protocol version."""
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
    """One message with the hints of both."""
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
    return (TOO_MANY_IDS,) if TOO_MANY_IDS in ids or len(ids) > MAX_IDS else ids


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Message)


def encode(sent: Message) -> bytes:
    """Encode the message as JSON of at most SIZE_LIMIT bytes. A longer message is replaced by one without kinds and
    ids, which makes the receiver read the store."""
    body = _encoder.encode(sent)
    if len(body) <= SIZE_LIMIT:
        return body
    return _encoder.encode(
        message(
            hello=None if sent.hello is None else msgspec.structs.replace(sent.hello, kinds=()),
            due=sent.due,
            done=(TOO_MANY_IDS,) if sent.done else (),
            ended=sent.ended,
            follow=sent.follow,
            cancel=(TOO_MANY_IDS,) if sent.cancel else (),
            control=True,
            free=sent.free,
        )
    )


class _Version(msgspec.Struct):
    v: int


NOT_JSON: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors of the decoder. Bytes that are not UTF-8, and input that is nested too deeply, have error types of their
own."""


def decode(body: bytes) -> Message:
    """Decode a message. Raises WireError if it is malformed, or has another protocol version."""
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
        raise WireError(f"not a peer message: {error}") from None
    raise WireError(
        f"the sender speaks version {version} of the peer protocol and this node speaks {PROTOCOL}; "
        "run the same release of synergon on all nodes"
    )
