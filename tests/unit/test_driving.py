"""The order of a driver's effects, told as dialogues: what its steps ask for, given what a small shell answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from snowmelt.commit.checks import Message, StagedFile
from snowmelt.commit.cleaning import CleaningView, Leftovers
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Committed, Entry, Intent, Reshape, Staged
from snowmelt.commit.summary import summarise
from snowmelt.driving.boot import CheckTargets, FindStart, Inspect, MakeHead, TakeGeneration, boot
from snowmelt.driving.committing import CommitEntries, Learn, StagedJob, TellListeners, WinIntent, offer, step
from snowmelt.driving.entries import Describe, Emptied, LogReport, Rescaled, TargetNow, build, emptied_by, targets_of
from snowmelt.driving.letting_go import (
    AskUnderWay,
    DeleteFiles,
    Discard,
    DropAside,
    DropRecords,
    DropSegments,
    Forget,
    IsTimeToSumUp,
    ListReferenced,
    ListStaged,
    SweepFiles,
    SweepSegments,
    let_go_of_log,
    of_table,
    sum_up,
    sweep,
    sweep_log,
)
from snowmelt.driving.loading import load, take_over_log
from snowmelt.driving.steps import Get, Machines, Newest, NewestGeneration, Put, Request, Trim, UnderWay, perform
from snowmelt.errors import Corrupt, Fenced, InvariantBroken, SourceDrift, Unavailable
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning.epochs import EpochPlan
from snowmelt.planning.facts import OUTSIDE, Adopted, Durable, Found, Incarnation, Launched, Reborn, Reshaped, SetAside, Truncated
from snowmelt.relay.retention import Cut, Decided, Prepared, Relay, SegmentRecord

ORDERS, LOGINS = Incarnation(TableId("shop", "orders"), 1), Incarnation(TableId("shop", "logins"), 1)
UNKNOWN = Incarnation(TableId("shop", "unknown"), 1)
FOUND = (Found(ORDERS, "ods.orders", True, 1), Found(LOGINS, "ods.logins", False, 2))


def segment(number: int, *, decided: tuple[Decided, ...] = ()) -> SegmentRecord:
    first = 10 * (number - 1)
    begins, ends = Position(1, 4 + first), Position(1, 14 + first)
    return SegmentRecord(
        number=number,
        generation=1,
        name=f"s{number}",
        begins=begins,
        ends=ends,
        first=first,
        cuts=(Cut(first + 10, first + 10),),
        decided=decided,
    )


def entry(target: str) -> Entry:
    return Entry(target=target, uuid="u", buckets=1, schema=1, new_schema=None, base=0, empties=(), files=(f"sm-1-e1-n-{target}",))


def intent(epoch: int, *, generation: int = 1, entries: tuple[Entry, ...] = ()) -> Intent:
    facts = FOUND if epoch == 1 else ()
    return Intent(
        epoch=epoch,
        generation=generation,
        nonce=f"n{epoch}",
        after=10 * (epoch - 1),
        upto=10 * epoch,
        time_ms=epoch,
        facts=facts,
        entries=entries,
        sequence_max=0,
        segment=epoch,
    )


class Shell:
    """Answers from records, and notes what it was asked for. `answers` are those of requests that no record answers, by their kind."""

    def __init__(self, answers: dict[type, Any] | None = None) -> None:
        self.records: dict[tuple[str, int], Any] = {}
        self.answers: dict[type, Any] = {AskUnderWay: UnderWay([], 0), **(answers or {})}
        self.asked: list[Request[Any]] = []
        self.before: Callable[[Request[Any]], None] = lambda request: None

    def act(self, request: Request[Any]) -> Any:
        self.before(request)
        self.asked.append(request)
        match request:
            case Newest(kind):
                return max((number for name, number in self.records if name == kind.name), default=0)
            case Get(kind, number):
                return self.records.get((kind.name, number))
            case Put(kind, number, value):
                return self.records.setdefault((kind.name, number), value)
            case Trim(kind, below):
                self.records = {key: value for key, value in self.records.items() if key[0] != kind.name or key[1] >= below}
                return None
        answer = self.answers.get(type(request))
        return answer(request) if callable(answer) else answer

    def have(self, *intents: Intent, done: bool = True) -> Ledger:
        """Records of epochs, each done; the last is not if `done` is False."""
        ledger = Ledger()
        for one in intents:
            self.records["intent", one.epoch] = one
            ledger.apply_intent(one)
            if done or one is not intents[-1]:
                self.records["done", one.epoch] = ledger.decide_done((), "")
                ledger.apply_done(self.records["done", one.epoch])
        return ledger

    def kinds(self) -> list[type]:
        return [type(request) for request in self.asked]


def machines_of(shell: Shell, *intents: Intent, done: bool = True, generation: int = 1) -> Machines:
    shell.have(*intents, done=done)
    for number in range(1, len(intents) + 1):
        shell.records["relay", number] = segment(number)
    shell.answers |= {Inspect: True, TakeGeneration: generation, NewestGeneration: generation}
    found = perform(boot(), shell.act)
    assert found is not None
    shell.asked.clear()
    return found


class TestLoading:
    def test_nothing_is_an_empty_ledger(self) -> None:
        assert perform(load(), Shell().act).epoch == 0

    def test_intents_are_folded_behind_the_newest_summary(self) -> None:
        shell = Shell()
        shell.records["summary", 1] = summarise(shell.have(intent(1)))
        del shell.records["intent", 1], shell.records["done", 1]
        shell.records["intent", 2] = intent(2)
        ledger = perform(load(), shell.act)
        assert (ledger.epoch, ledger.open is not None) == (2, True)

    def test_it_begins_again_where_a_summary_goes_or_comes_meanwhile(self) -> None:
        shell = Shell()
        summary = summarise(shell.have(intent(1)))
        shell.records["summary", 1] = summary

        def replace_it(request: Request[Any]) -> None:
            if isinstance(request, Get) and (request.kind.name, request.number) == ("summary", 1) and ("summary", 2) not in shell.records:
                del shell.records["summary", 1]
                shell.records["summary", 2] = summary

        shell.before = replace_it
        assert perform(load(), shell.act).epoch == 1
        shell = Shell()
        summary = summarise(shell.have(intent(1), intent(2)))

        def come(request: Request[Any]) -> None:
            if isinstance(request, Get) and (request.kind.name, request.number) == ("intent", 3):
                shell.records["summary", 1] = summary

        shell.before = come
        assert perform(load(), shell.act).epoch == 2
        assert shell.kinds().count(Newest) == 2

    def test_it_begins_again_where_a_done_record_was_trimmed_and_gives_up_in_the_end(self) -> None:
        shell = Shell()
        shell.have(intent(1), intent(2))
        del shell.records["done", 1]
        with pytest.raises(Unavailable, match="changes faster than it can be read"):
            perform(load(), shell.act)

    def test_the_log_is_taken_over_from_the_record_that_the_newest_intent_names(self) -> None:
        shell = Shell()
        assert perform(take_over_log(Ledger()), shell.act).floor == 0
        ledger = shell.have(intent(1), intent(2))
        for number in (2, 3):
            shell.records["relay", number] = segment(number)
        assert [one.number for one in perform(take_over_log(ledger), shell.act).segments] == [3]
        del shell.records["relay", 3]
        assert [one.number for one in perform(take_over_log(ledger), shell.act).segments] == [2]
        del shell.records["relay", 2]
        with pytest.raises(Corrupt, match="a record of the relay is missing"):
            perform(take_over_log(ledger), shell.act)


class TestBoot:
    def test_a_mistake_is_found_before_a_generation_is_taken(self) -> None:
        shell = Shell({Inspect: False})
        assert perform(boot(), shell.act) is None
        assert TakeGeneration not in shell.kinds()

    def test_a_run_that_is_to_end_while_it_waits_has_loaded_nothing_as_the_newest(self) -> None:
        shell = Shell({Inspect: True})
        assert perform(boot(), shell.act) is None
        assert shell.kinds()[-1] is TakeGeneration

    def test_the_state_is_loaded_as_the_newest_driver_and_the_generation_read_after_that(self) -> None:
        shell = Shell({Inspect: True, TakeGeneration: 3, NewestGeneration: 3})

        def take(request: Request[Any]) -> int:
            # Until then another driver was at work.
            shell.have(intent(1))
            shell.records["relay", 1] = segment(1)
            return 3

        shell.answers[TakeGeneration] = take
        machines = perform(boot(), shell.act)
        assert machines is not None
        assert (machines.generation, machines.ledger.epoch, machines.relay.end) == (3, 1, 10)
        order = [kind for kind in shell.kinds() if kind not in (Newest, Get)]
        assert order == [Inspect, TakeGeneration, FindStart, NewestGeneration, MakeHead, CheckTargets]

    def test_a_driver_that_is_not_the_newest_any_more_has_no_effect(self) -> None:
        shell = Shell({Inspect: True, TakeGeneration: 3, NewestGeneration: 4, MakeHead: segment(1)})
        with pytest.raises(Fenced):
            perform(boot(), shell.act)
        assert shell.kinds()[-1] is NewestGeneration
        assert shell.records == {}

    def test_the_head_of_a_chain_is_durable_before_the_driver_begins_and_counts_as_it_is_there(self) -> None:
        theirs = replace(segment(1), name="theirs")
        shell = Shell({Inspect: True, TakeGeneration: 3, NewestGeneration: 3, MakeHead: segment(1)})
        shell.before = lambda request: shell.records.update({("relay", 1): theirs}) if isinstance(request, Put) else None
        machines = perform(boot(), shell.act)
        assert machines is not None
        assert machines.relay.segments == [theirs]


def plan(*facts: Durable, epoch: int = 2) -> EpochPlan:
    return EpochPlan(
        epoch=epoch,
        generation=1,
        follows="1-n1" if epoch > 1 else "",
        after=10 * (epoch - 1),
        upto=10 * epoch,
        facts=facts,
        rules={},
        given_back=(),
    )


def known(*targets: str) -> Ledger:
    """Both tables are found; these lake tables have a commit of ours."""
    ledger = Shell().have(intent(1))
    ledger.last_commits.update(dict.fromkeys(targets, "1-n1"))
    return ledger


def described(request: Describe) -> dict[str, TargetNow]:
    found = {}
    for target, work in request.works.items():
        change = None if work.schema in (None, 1) else Reshape(1, 2, b"columns")
        change = change if work.buckets in (None, 4) else Reshape(1, 2, b"buckets")
        found[target] = TargetNow(uuid="u", buckets=4, schema=1, base=7, preface=(b"p",), change=change)
    return found


def committed(request: CommitEntries) -> list[Committed]:
    """The last of them, as the first that comes to its end."""
    return [Committed(request.works[-1].entry.target, 8)]


def report(writer: int, *files: StagedFile, messages: dict[str, tuple[bytes, ...]] | None = None) -> LogReport:
    return LogReport(Message(generation=1, epoch=2, writer=writer, files=files), messages or {})


class TestEntries:
    def test_a_table_is_emptied_where_its_source_was_and_a_change_table_never(self) -> None:
        again = Found(Incarnation(ORDERS.table, 2), "ods.orders", True, 1, 12)
        assert targets_of(plan(again), Ledger())["ods.orders"].empties == ()
        assert targets_of(plan(again), known("ods.orders"))["ods.orders"].empties == ("shop.orders",)
        for emptied in (Reborn(Incarnation(ORDERS.table, 2), 12, 1), Truncated(ORDERS, 12)):
            assert targets_of(plan(emptied), known())["ods.orders"].empties == ("shop.orders",)
        for emptied in (Reborn(Incarnation(LOGINS.table, 2), 12, 2), Truncated(LOGINS, 12)):
            assert targets_of(plan(emptied), known())["ods.logins"].empties == ()

    def test_a_change_table_says_that_its_source_was_emptied(self) -> None:
        relay = Relay()
        relay.apply(segment(1))
        again = Found(Incarnation(LOGINS.table, 2), "ods.logins", False, 2, 10)
        said = (Emptied(LOGINS.table, "ods.logins", 10, 10),)
        assert emptied_by(plan(again), known("ods.logins"), relay) == said
        assert emptied_by(plan(again), known(), relay) == ()
        assert emptied_by(plan(Truncated(LOGINS, 10)), known(), relay) == said
        assert emptied_by(plan(Reborn(Incarnation(LOGINS.table, 2), 10, 2)), known(), relay) == said
        assert emptied_by(plan(Truncated(ORDERS, 10), Reshaped(LOGINS, 10, 3)), known(), relay) == ()
        assert emptied_by(plan(Truncated(UNKNOWN, 10)), known(), relay) == ()
        assert emptied_by(plan(Truncated(LOGINS, 10), SetAside(LOGINS, 10, 0, "why")), known(), relay) == ()

    def test_a_table_that_is_set_aside_is_left_as_it_is(self) -> None:
        assert targets_of(plan(Truncated(ORDERS, 12), SetAside(ORDERS, 10, 0, "why")), known()) == {}

    def test_a_table_that_is_not_known_stops(self) -> None:
        with pytest.raises(SourceDrift, match="a table that is not known changes"):
            targets_of(plan(Truncated(UNKNOWN, 12)), known())

    def test_files_of_chunks_come_first_then_those_of_the_log_by_range(self) -> None:
        adopted = Adopted(incarnation=ORDERS, ordinal=OUTSIDE, nonce="read", visible=0, high=5)
        answers = [
            report(1, StagedFile("ods.orders", "late", 15), messages={"ods.orders": (b"2",)}),
            report(0, StagedFile("ods.orders", "early", 10), StagedFile("ods.logins", "other", 10), messages={"ods.orders": (b"1",)}),
            report(2, messages={"ods.logins": (b"3",)}),
        ]
        shell = Shell({Describe: described})
        built = perform(build(plan(adopted), known("ods.orders"), {"read": Staged(("chunk",), (b"0",), 1)}.__getitem__, answers), shell.act)
        assert [(one.target, one.files, one.messages, one.previous) for one in built] == [
            ("ods.logins", ("other",), (b"p", b"3"), ""),
            ("ods.orders", ("chunk", "early", "late"), (b"p", b"0", b"1", b"2"), "1-n1"),
        ]
        assert {(one.uuid, one.buckets, one.schema, one.base, one.new_schema, one.shape) for one in built} == {("u", 4, 1, 7, None, b"")}

    def test_a_change_of_columns_is_an_entry_and_one_that_the_lake_has_already_is_none(self) -> None:
        shell = Shell({Describe: described})
        both = perform(build(plan(Reshaped(ORDERS, 12, 3), Reshaped(LOGINS, 12, 1)), known(), {}.__getitem__, []), shell.act)
        assert [(one.target, one.new_schema, one.shape) for one in both] == [("ods.orders", 2, b"columns")]

    def test_a_rescale_takes_out_what_the_table_has_and_brings_it_anew_and_changes_the_schema(self) -> None:
        shell = Shell({Describe: described})
        (entry,) = perform(build(plan(), known("ods.orders"), {}.__getitem__, [], rescaled()), shell.act)
        assert (entry.target, entry.empties, entry.files, entry.messages) == (
            "ods.orders",
            ("shop.orders",),
            ("a", "b"),
            (b"p", b"1", b"2"),
        )
        assert (entry.buckets, entry.schema, entry.new_schema, entry.shape) == (4, 1, 2, b"buckets")
        (empty,) = perform(build(plan(), known(), {}.__getitem__, [], replace(rescaled(), snapshot=0, staged=())), shell.act)
        assert (empty.empties, empty.files, empty.new_schema) == ((), (), 2)

    def test_a_rescale_shares_its_epoch_with_no_other_change_of_the_table(self) -> None:
        with pytest.raises(InvariantBroken, match="rescales a table and changes it besides"):
            perform(build(plan(Truncated(ORDERS, 12)), known(), {}.__getitem__, [], rescaled()), Shell({Describe: described}).act)


def rescaled() -> Rescaled:
    parts = (Staged(("a",), (b"1",), 1), Staged(("b",), (b"2",), 1))
    return Rescaled(table=ORDERS.table, target="ods.orders", buckets=8, snapshot=7, staged=parts)


class TestCommitting:
    def offered(self, shell: Shell, job: StagedJob, generation: int = 1) -> tuple[Machines, str]:
        machines = machines_of(shell, intent(1, generation=generation), generation=generation)
        machines.relay.apply(segment(2))
        shell.answers[Describe] = described
        return machines, perform(offer(machines, job, {}.__getitem__, nonce="n2", now_ms=100), shell.act)

    def test_a_job_of_which_something_is_missing_is_dropped(self) -> None:
        machines, why = self.offered(Shell(), StagedJob(plan(), 2, [report(0)]))
        assert why == "answers are missing or come twice"
        assert machines.commit.next_step() is None

    def test_a_job_that_was_planned_from_another_intent_is_dropped(self) -> None:
        machines, why = self.offered(Shell(), StagedJob(replace(plan(), follows="another"), 1, [report(0)]))
        assert why == "another intent was won meanwhile"
        assert machines.commit.next_step() is None

    @pytest.mark.parametrize(("change", "why"), [({}, ""), ({"snapshot": 6}, "changed while"), ({"buckets": 4}, "changed while")])
    def test_a_rescale_of_rows_that_the_table_has_no_more_is_dropped(self, change: dict[str, int], why: str) -> None:
        job = StagedJob(plan(), 0, [], replace(rescaled(), **change))
        machines, refused = self.offered(Shell(), job)
        assert why in refused
        assert bool(refused) == bool(why)
        assert (machines.commit.next_step() is None) == bool(why)

    def test_from_the_offer_to_done_and_what_goes_with_each_step(self) -> None:
        shell = Shell()
        files = (StagedFile("ods.orders", "sm-1-e2-n0-a", 10), StagedFile("ods.logins", "sm-1-e2-n0-b", 10))
        machines, why = self.offered(shell, StagedJob(plan(), 1, [report(0, *files)]))
        assert why == ""
        leftovers = Leftovers()
        for file in files:
            leftovers.reported(file.target, Staged((file.name,), (), 0))
        leftovers.reported("ods.orders", Staged(("sm-1-e2-dropped-c",), (), 0))
        shell.asked.clear()
        shell.answers |= {WinIntent: True, CommitEntries: committed, TellListeners: "heard", IsTimeToSumUp: True}
        turns = []
        while perform(step(machines, leftovers), shell.act):
            turns.append([kind for kind in shell.kinds() if kind not in (Newest, Get)])
            shell.asked.clear()
        assert turns == [
            [WinIntent, Learn],
            [NewestGeneration],
            [CommitEntries],
            [CommitEntries],
            [TellListeners],
            [
                Put,
                AskUnderWay,
                DropRecords,
                DropSegments,
                Forget,
                AskUnderWay,
                Discard,
                SweepFiles,
                IsTimeToSumUp,
                Trim,
                SweepSegments,
                Put,
            ],
        ]
        assert machines.ledger.done_epoch == 2

    def test_the_files_of_a_won_intent_are_not_discarded(self) -> None:
        shell = Shell()
        machines, _ = self.offered(shell, StagedJob(plan(), 1, [report(0, StagedFile("ods.orders", "sm-1-e2-n0-a", 10))]))
        leftovers = Leftovers()
        leftovers.reported("ods.orders", Staged(("sm-1-e2-n0-a",), (), 0))
        shell.answers |= {WinIntent: True, CommitEntries: committed, TellListeners: ""}
        while perform(step(machines, leftovers), shell.act):
            pass
        assert Discard not in shell.kinds()
        assert DropAside not in shell.kinds()

    def test_tables_are_asked_for_until_each_is_committed_in_any_order(self) -> None:
        shell = Shell()
        names = ("ods.logins", "ods.orders")
        files = (StagedFile(name, f"sm-1-e2-n0-{name}", 10) for name in names)
        machines, _ = self.offered(shell, StagedJob(plan(), 1, [report(0, *files)]))
        answers = iter(([], [Committed("ods.orders", 9)], [], [Committed("ods.logins", 8)]))
        shell.answers |= {WinIntent: True, CommitEntries: lambda request: next(answers), TellListeners: ""}
        while perform(step(machines, Leftovers()), shell.act):
            pass
        asked = [[work.entry.target for work in one.works] for one in shell.asked if isinstance(one, CommitEntries)]
        assert asked == [[*names], [*names], ["ods.logins"], ["ods.logins"]]
        assert shell.records["done", 2].snapshots == (Committed("ods.logins", 8), Committed("ods.orders", 9))

    def test_an_intent_of_an_older_driver_is_learnt_when_it_is_read_back(self) -> None:
        shell = Shell()
        mine = replace(report(0), message=replace(report(0).message, generation=2))
        job = StagedJob(replace(plan(), generation=2, follows="2-n1"), 1, [mine])
        machines, _ = self.offered(shell, job, generation=2)
        shell.answers |= {WinIntent: False}
        theirs = intent(2, generation=1)
        shell.records["intent", 2] = theirs
        assert perform(step(machines, Leftovers()), shell.act)
        assert Learn not in shell.kinds(), "nothing is known of a put that did not win"
        assert perform(step(machines, Leftovers()), shell.act)
        assert [request for request in shell.asked if isinstance(request, Learn)] == [Learn(theirs, ours=False)]


class TestLettingGo:
    def test_the_log_stays_that_a_job_or_a_read_of_a_chunk_needs(self) -> None:
        shell = Shell()
        machines = machines_of(shell, intent(1))
        machines.relay.apply(segment(2))
        machines.ledger.done_upto = 20
        shell.answers[AskUnderWay] = UnderWay([18], 0)
        machines.ledger.tables.apply(Launched(ORDERS, OUTSIDE, 1, 14, 0))
        for floor in (14, 18):
            perform(let_go_of_log(machines), shell.act)
            assert machines.relay.floor == floor
            for fact in machines.ledger.tables.decide_give_back(ORDERS, OUTSIDE, 1, "late"):
                machines.ledger.tables.apply(fact)
        shell.answers[AskUnderWay] = UnderWay([], 0)
        perform(let_go_of_log(machines), shell.act)
        assert machines.relay.floor == 20

    def test_what_lies_aside_goes_when_its_second_phase_is_done_and_records_go_before_data(self) -> None:
        shell, group = Shell(), Prepared(xid="x", era=0, begins=10, offset=14, at=10, bytes=4)
        machines = machines_of(shell, intent(1))
        machines.relay.apply(replace(segment(2), prepared=(group,)))
        machines.relay.apply(segment(3, decided=(Decided(group, 30, True, aside=True),)))
        machines.ledger.done_upto, machines.ledger.done_segment = 30, 3
        perform(let_go_of_log(machines), shell.act)
        assert [request for request in shell.asked if isinstance(request, DropAside)] == [DropAside([group.number])]
        assert shell.kinds().index(DropRecords) < shell.kinds().index(DropSegments)

    def test_no_record_goes_that_a_driver_needs_which_does_not_know_of_the_open_intent(self) -> None:
        """It has taken its generation and has read the intents; then the older driver has won one more."""
        shell = Shell()
        machines = machines_of(shell, intent(1))
        # Another server continues at 10, where the first epoch ends. A full disk releases the log at any moment.
        era = replace(segment(2), begins=Position(1, 4, 1), ends=Position(1, 4, 1), cuts=(Cut(10, 10),))
        later = replace(segment(3), begins=Position(1, 4, 1), ends=Position(1, 14, 1), first=10, cuts=(Cut(20, 20),))
        for sealed in (era, later):
            machines.relay.apply(sealed)
            shell.records["relay", sealed.number] = sealed
        newer = perform(load(), shell.act)
        machines.ledger.apply_intent(replace(intent(2), segment=3))
        perform(let_go_of_log(machines), shell.act)
        for request in shell.asked:
            for number in request.numbers if isinstance(request, DropRecords) else ():
                del shell.records["relay", number]
        assert perform(take_over_log(newer), shell.act).end == 20

    def test_a_sweep_keeps_what_is_named_and_what_the_lake_refers_to(self) -> None:
        view = CleaningView(generation=5, epoch=7, intent_generation=5, jobs=0, under_way=set(), named={"sm-5-e7-named-a"})
        listed = ["sm-5-e7-named-a", "sm-5-e7-there-a", "sm-5-e7-over-a", "sm-5-e8-next-a"]
        shell = Shell({ListStaged: listed, ListReferenced: {"sm-5-e7-there-a"}})
        assert perform(sweep("t", view), shell.act) == 1
        assert shell.asked[-1] == DeleteFiles("t", ["sm-5-e7-over-a"])
        shell = Shell({ListStaged: ["sm-5-e8-next-a"]})
        assert perform(sweep("t", view), shell.act) == 0
        assert shell.kinds() == [ListStaged], "the lake is not asked for nothing"

    def test_rewrites_of_an_older_driver_go_from_the_tables_that_a_newer_one_has_committed_to(self) -> None:
        """And from no other: there the older one's publish may still win."""
        ledger = Ledger()
        ledger.last_commits = {"t": "5-ab", "u": "4-cd"}
        view = CleaningView(generation=5, epoch=7, intent_generation=5, jobs=0, under_way=set(), named=set())
        listed = ["sm-4-r1-over-a", "sm-4-r2-there-a", "sm-5-r1-next-a"]
        swept = {}
        for target in ("t", "u", "v"):
            shell = Shell({ListStaged: listed, ListReferenced: {"sm-4-r2-there-a"}})
            swept[target] = perform(sweep(target, of_table(view, ledger, target)), shell.act)
        assert swept == {"t": 1, "u": 0, "v": 0}

    def test_records_of_the_log_go_below_what_is_held_and_what_the_last_done_epoch_names(self) -> None:
        relay = Relay()
        shell = Shell()
        perform(sweep_log(relay, 3), shell.act)
        relay = Relay(floor=10)
        relay.apply(segment(2))
        for done, below in ((1, 1), (9, 2)):
            perform(sweep_log(relay, done), shell.act)
            assert [request.below for request in shell.asked if isinstance(request, Trim)][-1] == below
        assert SweepSegments(relay, 9) in shell.asked

    def test_three_summaries_are_kept_and_records_from_the_oldest_of_them_on(self) -> None:
        shell = Shell()
        ledger = Ledger()
        for epoch in range(1, 6):
            ledger = shell.have(*(intent(number) for number in range(1, epoch + 1)))
            perform(sum_up(ledger), shell.act)
            perform(sum_up(ledger), shell.act)
        numbers = {kind: sorted(number for name, number in shell.records if name == kind) for kind in ("summary", "intent", "done")}
        assert numbers == {"summary": [3, 4, 5], "intent": [3, 4, 5], "done": [3, 4, 5]}

    def test_a_summary_that_another_driver_was_first_with_trims_nothing(self) -> None:
        shell = Shell()
        ledger = shell.have(intent(1), intent(2))
        theirs = replace(summarise(ledger), epoch=1)
        shell.before = lambda request: shell.records.setdefault(("summary", 1), theirs) if isinstance(request, Put) else None
        perform(sum_up(ledger), shell.act)
        assert Trim not in shell.kinds()
