"""How the log job of an epoch is divided: which task reads which range, and for which tables."""

from __future__ import annotations

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Intent
from snowmelt.driving.entries import Emptied
from snowmelt.driving.sharing import LogShare, divide, shares_of
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import Adopting, EpochPlan, Rule
from snowmelt.planning.facts import OUTSIDE, Durable, Found, Incarnation, Reported, SetAside, Truncated
from snowmelt.relay.retention import Cut, Relay, SegmentRecord

ORDERS, LOGINS = Incarnation(TableId("shop", "orders"), 1), Incarnation(TableId("shop", "logins"), 1)
FOUND = (Found(ORDERS, "ods.orders", True, 1), Found(LOGINS, "ods.logins", False, 2))


def log(*cuts: int) -> Relay:
    """One segment from 0 on, with these cuts; it ends at the last of them."""
    relay = Relay()
    relay.apply(
        SegmentRecord(
            number=1,
            generation=1,
            name="s1",
            begins=Position(1, 0),
            ends=Position(1, cuts[-1]),
            first=0,
            cuts=tuple(Cut(cut, cut) for cut in cuts),
            decided=(),
        )
    )
    return relay


def known(*facts: Durable) -> Ledger:
    ledger = Ledger()
    ledger.apply_intent(
        Intent(
            epoch=1,
            generation=1,
            nonce="n1",
            after=0,
            upto=10,
            time_ms=1,
            facts=(*FOUND, *facts),
            entries=(),
            sequence_max=0,
            segment=1,
        )
    )
    ledger.apply_done(ledger.decide_done((), ""))
    ledger.last_commits["ods.logins"] = "1-n1"
    return ledger


def rule(incarnation: Incarnation, *, live: bool, visible: int | None = None) -> Rule:
    reading = Reported(incarnation=incarnation, ordinal=OUTSIDE, job=1, nonce="n", high=5, exact=True, schema=1, files=())
    adopting = () if visible is None else (Adopting(reading=reading, visible=visible, span=None, replaces=False),)
    return Rule(incarnation=incarnation, after=10, emits_all=live, adopting=adopting)


def plan(after: int, upto: int, *facts: Durable, **rules: Rule) -> EpochPlan:
    return EpochPlan(
        epoch=2,
        generation=1,
        follows="1-n1",
        after=after,
        upto=upto,
        facts=facts,
        rules={TableId("shop", name): rule for name, rule in rules.items()},
        given_back=(),
    )


LIVE, COPIED, READ = rule(LOGINS, live=True), rule(ORDERS, live=False, visible=2), rule(ORDERS, live=False)


def test_the_log_is_cut_in_shares_of_about_equal_bytes_that_end_at_cuts() -> None:
    relay = log(*range(10, 101, 10))
    assert shares_of(relay, 0, 100, tasks=4, share_bytes_min=1) == [LogShare(0, 20), LogShare(20, 40), LogShare(40, 70), LogShare(70, 100)]
    assert shares_of(relay, 0, 100, tasks=4, share_bytes_min=50) == [LogShare(0, 50), LogShare(50, 100)]
    assert shares_of(relay, 0, 100, tasks=4, share_bytes_min=1_000) == [LogShare(0, 100)]
    assert shares_of(relay, 40, 40, tasks=4, share_bytes_min=1) == []


def test_a_transaction_that_is_larger_than_a_share_is_one_range_of_several_tasks() -> None:
    relay = log(10, 90, 100)
    shares = shares_of(relay, 0, 100, tasks=4, share_bytes_min=1)
    assert shares == [LogShare(0, 10), *(LogShare(10, 90, part, 3) for part in range(3)), LogShare(90, 100)]


def test_a_range_of_several_transactions_is_one_tasks_however_large_it_is() -> None:
    assert shares_of(log(10, 100), 0, 100, tasks=1, share_bytes_min=1) == [LogShare(0, 100)]


def test_what_an_earlier_epoch_has_passed_is_read_again_for_tables_that_adopt_and_for_no_other() -> None:
    work = divide(plan(10, 20, orders=COPIED, logins=LIVE), known(), log(2, 10, 20), tasks=1, share_bytes_min=1)
    assert [(one.share, set(one.rules)) for one in work] == [
        (LogShare(2, 10), {ORDERS.table}),
        (LogShare(10, 20), {ORDERS.table, LOGINS.table}),
    ]


def test_a_table_that_emits_nothing_is_in_no_task() -> None:
    work = divide(plan(10, 20, orders=READ, logins=LIVE), known(), log(10, 20), tasks=1, share_bytes_min=1)
    assert [set(one.rules) for one in work] == [{LOGINS.table}]


def test_one_task_alone_writes_that_a_change_table_was_emptied_also_where_there_is_nothing_to_read() -> None:
    relay, said = log(*range(10, 101, 10)), (Emptied(LOGINS.table, "ods.logins", 10, 10),)
    work = divide(plan(10, 100, Truncated(LOGINS, 10), logins=LIVE), known(), relay, tasks=3, share_bytes_min=1)
    assert [one.emptied for one in work] == [said, (), ()]
    alone = divide(plan(10, 10, Truncated(LOGINS, 10)), known(), relay, tasks=3, share_bytes_min=1)
    assert [(one.share, one.rules, one.emptied) for one in alone] == [(LogShare(10, 10), {}, said)]


def test_nothing_of_the_log_is_no_task() -> None:
    assert divide(plan(10, 10), known(SetAside(ORDERS, 10, 0, "why")), log(10, 20), tasks=3, share_bytes_min=1) == []
