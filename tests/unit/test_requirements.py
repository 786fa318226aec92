"""What kinds and calls may say of resources, labels and pipelines, what stands in their rows, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synergon import Engine, OptionError, Resources
from synergon.explain.requirement_text import requirements_in_text, why_never
from synergon.model.requirements import (
    NO_REQUIREMENTS,
    UNIT,
    Requirements,
    is_suitable,
    make_requirements,
    parse_requirements,
    with_kind_defaults,
)
from synergon.options.pipelines import ranks
from synergon.policies import Retention

LABELS = st.frozensets(st.sampled_from(["a", "b", "c"]))
AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "ram", "x"]), st.integers(0, 4))


async def body() -> None:
    """Nothing to do."""


@pytest.fixture
def engine(memory_url: str) -> Engine:
    return Engine(memory_url)


# ---------------------------------------------------------------- amounts


def test_amounts_are_whole_numbers_of_what_was_said() -> None:
    found = Resources(cpu=1.5, ram="2GiB", gpu=0, custom={"license": 3}).amounts()
    assert found == {"cpu": 1_500_000, "ram": 2**31, "gpu": 0, "license": 3 * UNIT}
    assert Resources().amounts() == {}
    assert Resources(ram="512MB") == Resources(ram=512_000_000)


@given(st.integers(1, 1000))
def test_as_many_equal_shares_fit_as_one_was_cut_into(parts: int) -> None:
    share = Resources(gpu=1 / parts).amounts()["gpu"]
    assert parts * share <= UNIT < (parts + 1) * (share + 1)


@given(st.integers(0, 10**9))
def test_millionths_are_kept_exactly(millionths: int) -> None:
    assert Resources(cpu=millionths / UNIT).amounts() == {"cpu": millionths}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu": -1}, "Resources cpu must be a number from 0 to 1e\\+09, got -1"),
        ({"gpu": "one"}, "Resources gpu must be a number .* got 'one'"),
        ({"cpu": True}, "Resources cpu must be a number .* got True"),
        ({"cpu": float("nan")}, "Resources cpu must be a number .* got nan"),
        ({"cpu": float("inf")}, "Resources cpu must be a number .* got inf"),
        ({"cpu": 1e10}, "Resources cpu must be a number"),
        ({"cpu": 10**400}, "Resources cpu must be a number from 0 to 1e\\+09, got 1000"),
        ({"cpu": 1e-7}, "Resources cpu must be 0 or at least a millionth, got 1e-07"),
        ({"ram": "\u0663GiB"}, 'Resources ram must be bytes or a size like "512MB" or "2GiB", got \'\u0663GiB\''),
        ({"ram": "2 parsecs"}, 'Resources ram must be bytes or a size like "512MB" or "2GiB", got \'2 parsecs\''),
        ({"ram": -1}, "Resources ram must be bytes or a size"),
        ({"ram": 1.5}, "Resources ram must be bytes or a size"),
        ({"ram": "0.5B"}, "Resources ram must be 0 or at least a byte, got '0.5B'"),
        ({"ram": "0.0001KB"}, "Resources ram must be 0 or at least a byte, got '0.0001KB'"),
        ({"ram": "9" * 400}, "Resources ram must be a realistic size"),
        ({"ram": 10**16}, "Resources ram must be at most 1e\\+15 bytes"),
        ({"custom": ["license"]}, "Resources custom must be a dict"),
        ({"custom": {"my license": 1}}, "the name of a resource is a word .* got 'my license'"),
        ({"custom": {"": 1}}, "the name of a resource is a word"),
        ({"custom": {1: 1}}, "the name of a resource is a word"),
        ({"custom": {"x" * 101: 1}}, "the name of a resource is a word of at most 100 characters"),
        ({"custom": {"gpu": 1}}, r"'gpu' is not a custom resource; write Resources\(gpu=...\)"),
        ({"custom": {"CPU": 1}}, r"'CPU' is not a custom resource; write Resources\(cpu=...\)"),
        ({"custom": {"license": -1}}, "Resources license must be a number"),
        ({"custom": {"license": None}}, "Resources license must be a number .* got None"),
    ],
)
def test_amounts_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Resources(**given)


# ---------------------------------------------------------------- options

BAD_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"cost": 1}, r"cost must be Resources, like Resources\(cpu=1\), got 1"),
    ({"cost": Retention()}, "cost must be Resources"),
    ({"needs": "zone:eu"}, "needs must be a set of labels, like {\"zone:eu\"}, got 'zone:eu'"),
    ({"needs": ["zone eu"]}, "needs: a label is a word .* without blanks and commas, got 'zone eu'"),
    ({"needs": ["a,b"]}, "needs: a label is a word"),
    ({"needs": [""]}, "needs: a label is a word"),
    ({"needs": [7]}, "needs: a label is a word .* got 7"),
    ({"forbids": ["x" * 101]}, "forbids: a label is a word of at most 100 characters"),
    ({"forbids": ["tab\t"]}, "forbids: a label is a word"),
    ({"needs": ["a", "b"], "forbids": ["b"]}, "'b' is both needed and forbidden; no node could run it"),
    ({"needs": [f"{number:090}" for number in range(11)]}, "take 1034 bytes, and at most 1000 are kept"),
]


@pytest.mark.parametrize(("options", "message"), BAD_OPTIONS)
def test_what_no_node_could_have_is_refused_where_it_is_said(
    engine: Engine, options: dict[str, Any], message: str
) -> None:
    greet = engine.task(name="greet")(body)
    places: list[Callable[[], Any]] = [
        lambda: engine.task(**options)(body),
        lambda: greet.with_options(**options),
        lambda: greet.call().with_options(**options),
        lambda: engine.call("elsewhere").with_options(**options),
    ]
    for place in places:
        with pytest.raises(OptionError, match=message):
            place()


def test_what_the_kind_needs_a_call_may_not_forbid(engine: Engine) -> None:
    greet = engine.task(name="greet", needs={"zone:eu"})(body)
    with pytest.raises(OptionError, match="'zone:eu' is both needed and forbidden"):
        greet.with_options(forbids={"zone:eu"})
    greet.with_options(forbids={"zone:eu"}, needs=())


# ---------------------------------------------------------------- what stands in the row


def test_a_task_that_demands_nothing_says_nothing(engine: Engine) -> None:
    greet = engine.task(name="greet")(body)
    for call in (greet.call(), greet.with_options(needs=()).call(), greet.with_options(timeout=5).call()):
        assert call.to_new_task().requirements == ""
    assert engine.call("elsewhere").to_new_task().requirements == ""


def test_the_words_of_the_call_replace_those_of_the_kind_one_by_one(engine: Engine) -> None:
    train = engine.task(name="train", cost=Resources(gpu=1), needs={"b", "a"}, timeout=60)(body)
    of_kind = '{"cost":{"gpu":1000000},"needs":["a","b"]}'
    assert train.call().to_new_task().requirements == of_kind
    assert train.with_options(priority=1).call().to_new_task().requirements == of_kind
    assert train.with_options(timeout=60).call().to_new_task().requirements == of_kind
    cheaper = train.with_options(cost=Resources(cpu=1)).call().to_new_task()
    assert parse_requirements(cheaper.requirements) == Requirements(cost={"cpu": UNIT}, needs=("a", "b"))
    assert train.with_options(cost=Resources(), needs=()).call().to_new_task().requirements == "{}"
    assert parse_requirements(train.with_options(timeout=61).call().to_new_task().requirements).is_long
    assert parse_requirements(train.with_options(timeout=None).call().to_new_task().requirements).is_long


def test_a_call_by_name_leaves_the_rest_to_the_kind(engine: Engine) -> None:
    said = parse_requirements(engine.call("elsewhere").with_options(needs={"zone:eu"}).to_new_task().requirements)
    assert said.left_to_kind == ("cost", "forbids")
    of_kind = Requirements(cost={"gpu": UNIT}, needs=("zone:us",), forbids=("spot",))
    assert with_kind_defaults(said, of_kind) == Requirements(cost={"gpu": UNIT}, needs=("zone:eu",), forbids=("spot",))
    longer = parse_requirements(engine.call("elsewhere").with_options(timeout=5).to_new_task().requirements)
    assert with_kind_defaults(longer, of_kind) == Requirements(
        cost={"gpu": UNIT}, needs=("zone:us",), forbids=("spot",), is_long=True
    )


# ---------------------------------------------------------------- pipelines


def test_kinds_may_be_named_before_they_are_registered(engine: Engine) -> None:
    engine.task(name="end", downstream_of=["middle", "aside"])(body)
    engine.task(name="middle", downstream_of=["beginning"])(body)
    engine.task(name="beginning")(body)
    engine.task(name="aside")(body)
    engine.task(name="unrelated")(body)
    assert ranks(engine.kinds) == {"end": 0, "middle": 1, "beginning": 2, "aside": 2, "unrelated": 2}


def test_a_circle_is_refused_when_it_is_closed(engine: Engine) -> None:
    engine.task(name="a", downstream_of=["c"])(body)
    engine.task(name="b", downstream_of=["a"])(body)
    with pytest.raises(OptionError, match=r"downstream_of goes round in a circle: '.' after '.' after '.' after '.'"):
        engine.task(name="c", downstream_of=["b"])(body)
    assert "c" not in engine.kinds
    engine.task(name="c")(body)
    with pytest.raises(OptionError, match="in a circle: 'self' after 'self'"):
        engine.task(name="self", downstream_of=["self"])(body)


@pytest.mark.parametrize("value", ["beginning", None, 1, [""], [1]])
def test_downstream_of_takes_names_of_kinds(engine: Engine, value: Any) -> None:
    with pytest.raises(OptionError, match="downstream_of"):
        engine.task(name="end", downstream_of=value)(body)


async def test_an_unknown_kind_is_refused_when_it_can_be_told_that_it_is(engine: Engine) -> None:
    engine.task(name="end", downstream_of=["begining"])(body)
    with pytest.raises(OptionError, match="'end' is downstream_of 'begining', which is no kind of this engine"):
        await engine.connect()
    engine.task(name="begining")(body)
    async with engine:
        engine.task(name="later", downstream_of=["nobody"])(body)
        with pytest.raises(OptionError, match="'later' is downstream_of 'nobody'"):
            async with engine.worker():
                pass


def test_a_single_call_has_no_place_in_a_pipeline(engine: Engine) -> None:
    greet = engine.task(name="greet")(body)
    options: dict[str, Any] = {"downstream_of": ["x"]}
    with pytest.raises(OptionError, match="has no option 'downstream_of'"):
        greet.with_options(**options)


# ---------------------------------------------------------------- words


@given(AMOUNTS, LABELS, LABELS, LABELS, AMOUNTS)
def test_a_node_lacks_something_exactly_if_it_does_not_suit(
    cost: dict[str, int], needs: frozenset[str], forbids: frozenset[str], labels: frozenset[str], totals: dict[str, int]
) -> None:
    wanted = make_requirements(cost, needs, forbids)
    assert bool(why_never(wanted, labels, totals)) != is_suitable(wanted, labels, totals)


def test_demands_are_said_as_people_write_them() -> None:
    wanted = make_requirements(
        {"gpu": UNIT // 2, "ram": 3 * 2**29, "cpu": 2 * UNIT}, frozenset({"zone:eu"}), frozenset({"spot"})
    )
    assert requirements_in_text(wanted) == "cpu 2, gpu 0.5, ram 1.5 GiB, needs zone:eu, forbids spot"
    assert requirements_in_text(NO_REQUIREMENTS) == "nothing"
    found = why_never(wanted, frozenset({"spot"}), {"cpu": UNIT, "ram": 2**40})
    assert found == ["lacks the label zone:eu", "has the label spot", "has cpu 1 in all", "has gpu 0 in all"]
