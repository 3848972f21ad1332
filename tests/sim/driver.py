"""A driver in the simulated world: the hands of the pure machines. Each of its actors is a generator, one step between two yields;
it may be paused, or end, between any two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from snowmelt.commit import checks, cleaning, coordinator, publish, summary
from snowmelt.commit.checks import Message, StagedFile
from snowmelt.commit.coordinator import (
    CommitTables,
    Coordinator,
    DonePut,
    GenerationRead,
    IntentPut,
    IntentRead,
    ListenersRan,
    PutDone,
    PutIntent,
    ReadGeneration,
    ReadIntent,
    RunListeners,
    TableCommitted,
)
from snowmelt.commit.ledger import Ledger
from snowmelt.commit.records import Entry, Intent, Staged, StagedName, intent_of
from snowmelt.errors import Corrupt, Fenced, OutcomeUnknown, SourceDrift, Unavailable
from snowmelt.model import sequence
from snowmelt.model.position import Position
from snowmelt.model.table import TableId
from snowmelt.planning import epochs as planning
from snowmelt.planning.asides import Requests, Troubles, forget, reborn
from snowmelt.planning.emission import emits
from snowmelt.planning.epochs import Adopting, EpochPlan, Rule, Span
from snowmelt.planning.facts import (
    OUTSIDE,
    Adopted,
    Durable,
    Found,
    Incarnation,
    KeyEnds,
    Launched,
    Reborn,
    Recopied,
    Reported,
    Reshaped,
    SetAside,
    Split,
    Truncated,
)
from snowmelt.planning.tables import TablePhase
from snowmelt.relay import retention, takeover
from snowmelt.relay.retention import Cut, Decided, Ending, Prepared, Relay, TableStatement
from snowmelt.relay.takeover import Waiting
from tests.sim.database import Change, Read, Transaction
from tests.sim.lake import LakeTable, Row
from tests.sim.store import Steps

if TYPE_CHECKING:
    from tests.sim.world import World


def aside(group: Prepared) -> str:
    """The name of what lies aside."""
    return f"held-{group.number}"


def packed(key: int) -> bytes:
    return key.to_bytes(2, "big")


class Job:
    """One run of an epoch's log job. Its tasks answer here, whether anybody still listens or not."""

    def __init__(self, plan: EpochPlan, writers: int) -> None:
        self.plan = plan
        self.writers = writers
        self.messages: list[Message] = []
        self.failed = False
        self.stuck: TableId | None = None
        """The table of which a task says that it can't go on."""


class Driver:
    def __init__(self, world: World) -> None:
        self.world = world
        self.generation = 0
        self.dead = False
        self.paused_until = 0
        self.ledger = Ledger()
        self.relay = Relay()
        self.coordinator: Coordinator | None = None
        self.captured = 0
        """The number of the last transaction that is in the relay, as far as this driver knows."""
        self.jobs = 0
        self.inbox: list[tuple[Launched, str, Position, Read | None, KeyEnds | None, tuple[str, ...]]] = []
        self.staged: tuple[Job, EpochPlan] | None = None
        self.busy = False
        """A log job is under way."""
        self.job: Job | None = None
        self.leftovers = cleaning.Leftovers()
        self.troubles = Troubles(self.ledger.tables)
        self.requests = Requests()

    # ---- beginning

    def boot(self) -> Steps[None]:
        world = self.world
        yield from self.take_generation()
        if world.in_folder:
            yield from self.take_folder()
        self.ledger = yield from self.load()
        self.troubles = Troubles(self.ledger.tables)
        if world.rng.random() < world.profile.ask:
            self.requests = Requests(table.incarnation.table for table in self.ledger.tables if table.phase is TablePhase.SET_ASIDE)
        self.relay = yield from self.take_over(self.ledger)
        machine = Coordinator(self.generation, self.ledger)
        step = machine.next_step()
        assert step is not None
        yield from self.perform(machine, step)
        machine.next_step()
        self.coordinator = machine
        yield from self.clean()
        world.spawn(self, self.capture(), "capture")
        world.spawn(self, self.plan(), "plan")
        world.spawn(self, self.commit(), "commit")

    def take_generation(self) -> Steps[None]:
        world, store = self.world, self.world.store
        nonce = world.nonce()
        while True:
            newest = yield from store.newest("generation")
            if (yield from store.settle("generation", newest + 1, nonce)) == nonce:
                break
        self.generation = newest + 1
        world.say(f"generation {self.generation}")

    def take_folder(self) -> Steps[None]:
        """The lock of the log's folder: a process has it until it ends, however long it is paused."""
        world, store = self.world, self.world.store
        began, told_ms, took_another = world.clock, 0, False
        while world.folder_owner is not None and not world.folder_owner.dead:
            newest = (yield from store.newest("generation")) == self.generation
            waited_ms = (world.clock - began) * 1000
            match self.decide_wait(waited_ms=waited_ms, told_ms=told_ms, newest=newest, took_another=took_another):
                case Waiting.LOOK:
                    yield
                case Waiting.ANOTHER:
                    yield from self.take_generation()
                    took_another = True
                case Waiting.TELL:
                    told_ms = waited_ms
                    world.counts["waited for a paused driver"] += 1
                case Waiting.FENCED:
                    raise Fenced("a newer driver runs this pipeline")
        world.folder_owner = self

    def decide_wait(self, **waiting: Any) -> Waiting:
        """For whoever plants a bug here."""
        return takeover.decide_wait(**waiting)

    def load(self) -> Steps[Ledger]:
        """Fold the newest summary and the records behind it. If that summary is not the newest any more, begin again."""
        store = self.world.store
        while True:
            number = yield from store.newest("summary")
            found = yield from store.get("summary", number)
            if number and found is None:
                continue
            ledger = summary.restore(found) if found is not None else Ledger()
            whole = True
            while (intent := (yield from store.get("intent", ledger.epoch + 1))) is not None:
                if ledger.open is not None:
                    whole = False
                    break
                ledger.apply_intent(intent)
                done = yield from store.get("done", ledger.epoch)
                if done is not None:
                    ledger.apply_done(done)
            still = number == 0 or (yield from store.get("summary", number)) is not None
            newer = yield from store.get("summary", number + 1)
            if whole and still and newer is None:
                return ledger

    def take_over(self, ledger: Ledger) -> Steps[Relay]:
        store = self.world.store
        chain = []
        number = ledger.segment
        while (sealed := (yield from store.get("relay", number + 1))) is not None:
            chain.append(sealed)
            number += 1
        if retention.needs_before(chain, ledger.upto) and ledger.segment:
            chain.insert(0, (yield from store.get("relay", ledger.segment)))
            if chain[0] is None:
                raise Corrupt("a record of the relay is missing", detail=f"{ledger.segment}")
        if chain:
            self.captured, _ = yield from self.read_data(chain[-1].name)
        return retention.take_over(chain, intent_upto=ledger.upto)

    def read_data(self, name: str) -> Steps[tuple[int, tuple[tuple[int, Transaction, Position], ...]]]:
        found = yield from self.world.faulty.read(lambda: self.world.store.data.get(name))
        if found is None:
            raise Corrupt("a segment's data is missing", detail=name)
        return found  # type: ignore[no-any-return]

    # ---- capture

    def capture(self) -> Steps[None]:
        world, store, rng = self.world, self.world.store, self.world.rng
        while True:
            yield
            taken = world.database_after(self.captured, rng.randint(1, 5))
            begins = ends = world.db.end
            last = self.captured
            if taken:
                last = taken[-1].number
                begins, ends = world.db.places[taken[0].number][0], world.db.places[last][1]
                world.db.fetched = max(world.db.fetched, last)
            elif self.relay.newest is None or self.relay.newest.ends == ends:
                continue
            offset, rows, cuts, statements = self.relay.end, [], [], []
            phases: list[Prepared | Ending] = []
            for transaction in taken:
                offset += transaction.bytes
                if transaction.prepares:
                    size = transaction.bytes
                    phases.append(
                        Prepared(xid=f"x{transaction.number}", era=ends.era, begins=offset - size, offset=offset, at=0, bytes=size)
                    )
                elif transaction.decides is not None:
                    phases.append(Ending(f"x{transaction.decides}", offset, transaction.committed))
                rows.append((offset, transaction, world.db.places[transaction.number][1]))
                cuts.append(Cut(offset, transaction.stamp_ms))
                statements.extend(TableStatement(offset, *statement) for statement in transaction.statements)
            if not taken:
                cuts.append(Cut(offset, world.db.log[-1].stamp_ms))
            name = f"{self.generation}-{world.nonce()}"
            sealed = self.relay.decide_seal(self.generation, name, begins, ends, tuple(cuts), tuple(statements), phases)
            world.segment_numbers[name] = sealed.number
            yield from store.put_data(name, (last, tuple(rows)))
            for group in sealed.put_aside:
                yield from store.put_data(aside(group), next(one.prepares for at, one, _ in rows if at == group.offset))
            found = yield from store.settle("relay", sealed.number, sealed)
            # The number may have been free because it was trimmed, long after this driver was the newest.
            if (yield from store.newest("generation")) > self.generation:
                raise Fenced("a newer capture has begun")
            if found != sealed:
                last, _ = yield from self.read_data(found.name)
            self.relay.apply(found)
            self.captured = last

    # ---- planning

    def plan(self) -> Steps[None]:
        world, rng = self.world, self.world.rng
        proposals: list[Durable] = []
        while True:
            yield
            self.hear()
            self.give_back_some()
            if rng.random() < 0.5:
                yield from self.launch()
            if self.busy or self.staged is not None or self.coordinator is None or not self.coordinator.may_plan:
                continue
            if not proposals or rng.random() < 0.5:
                proposals = list(self.propose())
            upto = planning.choose_end(self.ledger.tables, self.relay, self.ledger.upto, world.profile.epoch_bytes)
            if rng.random() < 0.3:
                upto = world.earlier_cut(self.relay, self.ledger.upto, upto)
            plan = self.plan_epoch(upto, proposals)
            if plan.after == plan.upto and not plan.facts and rng.random() < 0.95:
                continue
            proposals = []
            for fact in plan.given_back:
                self.ledger.tables.apply(fact)
            job = Job(plan, rng.randint(1, 3))
            self.run(job)
            while len(job.messages) < job.writers and not job.failed:
                yield
                self.hear()
            self.busy = False
            if not job.failed:
                for message in job.messages:
                    for file in message.files:
                        self.leftovers.reported(file.target, Staged((file.name,), (), 0))
                self.staged = (job, plan)
            elif job.stuck is not None:
                self.troubles.add(job.stuck, "a task can't write it")
            elif (yield from world.store.newest("generation")) > self.generation:
                # What it reads may be gone because somebody newer let go of it.
                raise Fenced("a newer driver runs this pipeline")

    def plan_epoch(self, upto: int, proposals: list[Durable]) -> EpochPlan:
        ledger = self.ledger
        return planning.plan_epoch(
            ledger.tables,
            self.relay,
            epoch=ledger.epoch + 1,
            generation=self.generation,
            follows=ledger.identity,
            after=ledger.upto,
            upto=upto,
            proposals=proposals,
        )

    def hear(self) -> None:
        """Reports of chunk tasks count once the relay has come to where they end."""
        waiting = []
        for report in self.inbox:
            launch, nonce, high, read, extent, files = report
            try:
                offset = self.relay.offset_of(high)
            except SourceDrift:
                self.give_back(launch, "another server")
                continue
            if read is None:
                self.give_back(launch, "it failed")
                if self.world.rng.random() < self.world.profile.stuck:
                    self.troubles.add(launch.incarnation.table, "it can't be read")
            elif offset is None:
                waiting.append(report)
            else:
                exact = self.world.profile.marks != "gtids"
                exact = exact or all(number in read.covered for number in self.world.numbers_upto(read.high_number))
                fact = Reported(launch.incarnation, launch.ordinal, launch.job, nonce, offset, exact, read.schema, files, extent)
                for decided in self.ledger.tables.decide_report(fact):
                    self.ledger.tables.apply(decided)
        self.inbox = waiting

    def give_back(self, launch: Launched, why: str) -> None:
        for fact in self.ledger.tables.decide_give_back(launch.incarnation, launch.ordinal, launch.job, why):
            self.ledger.tables.apply(fact)

    def give_back_some(self) -> None:
        if self.world.rng.random() < self.world.profile.give_back:
            for reading in list(self.ledger.tables.readings())[:1]:
                self.give_back(reading.launch, "it took too long")

    def launch(self) -> Steps[None]:
        world = self.world
        era, shown = yield from world.faulty.read(lambda: (world.db.era, world.db.shown()))
        if self.relay.newest is None or era != self.relay.era:
            return
        try:
            visible = planning.visible_cut(self.relay, shown)
        except SourceDrift:
            return
        if visible is None:
            return
        launches = planning.decide_launches(
            self.ledger.tables, self.relay, visible=visible, job=self.jobs + 1, running_max=world.profile.running_max
        )
        for fact in launches:
            self.jobs = fact.job
            self.ledger.tables.apply(fact)
            copy = self.ledger.tables.copy_of(fact.incarnation)
            world.spawn(None, self.read_chunk(fact, planning.span_of(copy, fact.ordinal), copy.extent), "chunk")

    def read_chunk(self, launch: Launched, span: Span | None, extent: KeyEnds | None) -> Steps[None]:
        """A task of the chunk lane. It knows nothing of the driver but where to report to."""
        world, db, rng = self.world, self.world.db, self.world.rng
        table, nonce = launch.incarnation.table, world.nonce()
        yield
        opened = (db.era, frozenset(db.visible), db.end, db.log[-1].number if db.log else 0, db.shown())
        covered = opened[1]
        statements = world.emptied_by(table)
        yield
        schema = db.schemas[table]
        shown = world.emptied_by(table)
        failed = db.era != opened[0] or db.era != launch.era or shown != statements or rng.random() < world.profile.task_failure
        high, high_number, contains = opened[2], opened[3], covered
        if world.profile.marks == "positions":
            high = opened[4]
        if world.profile.marks == "gtids":
            # MySQL with GTIDs: the set is read before the snapshot opens, the end of the log after it.
            high, high_number, contains = db.end, db.log[-1].number if db.log else 0, frozenset(db.visible)
        rows = db.rows(table, contains)
        if launch.ordinal == OUTSIDE:
            extent = KeyEnds(packed(min(rows)), packed(max(rows))) if rows else None
            rows = {}
        else:
            rows = {key: value for key, value in rows.items() if world.within(key, span, extent)}
        read = None if failed else Read(rows, contains, covered, high, high_number, schema)
        yield
        files: tuple[str, ...] = ()
        if read is not None:
            world.reads[nonce] = read
            if rows:
                target = world.target_of(table)
                name = str(StagedName(self.generation, True, launch.job, nonce, target))
                kept = tuple(Row((str(table), key), sequence.of_chunk(launch.visible), value, f"r{nonce}") for key, value in rows.items())
                world.lakes[target].storage[name] = kept
                files = (name,)
        yield
        if files:
            self.leftovers.reported(world.target_of(table), Staged(files, (), 0))
        for _ in range(2 if rng.random() < 0.1 else 1):
            self.inbox.append((launch, nonce, high, read, extent if launch.ordinal == OUTSIDE else None, files))
            yield

    def propose(self) -> Iterator[Durable]:
        world, rng, tables = self.world, self.world.rng, self.ledger.tables
        yield from self.troubles.propose(self.ledger.upto, world.clock)
        for asked in self.requests.open(tables):
            yield reborn(asked, epoch=self.ledger.epoch + 1, at=self.ledger.upto)
        if rng.random() < world.profile.exclude:
            yield from forget(tables, world.db.tables, self.ledger.upto)
        for name in world.db.tables:
            table = tables.get(name)
            if table is None or table.phase is TablePhase.GONE:
                there, schema = world.as_of(name, self.ledger.upto)
                if there and rng.random() < 0.7:
                    target = world.target_of(name)
                    incarnation = Incarnation(name, self.ledger.epoch + 1)
                    yield Found(incarnation, target, world.lakes[target].keyed, schema, self.ledger.upto)
                    if rng.random() < world.profile.stuck:
                        yield SetAside(incarnation, self.ledger.upto, world.clock, "the lake can't take it")
            elif table.phase is TablePhase.SPLITTING and table.copy is not None and table.copy.extent is not None:
                first = table.copy.bounds.last + 1
                at = int.from_bytes(table.copy.extent.least, "big") - 1
                if first > 1:
                    at = int.from_bytes(table.copy.bounds.upper(first - 1), "big")
                greatest = int.from_bytes(table.copy.extent.greatest, "big")
                uppers = []
                for _ in range(rng.randint(1, 3)):
                    if at < greatest:
                        at = min(greatest, at + rng.randint(1, 3))
                        uppers.append(packed(at))
                yield Split(table.incarnation, first, tuple(uppers), at >= greatest)
            elif table.phase is TablePhase.RELEASED and (world.truths[name].damaged or rng.random() < world.profile.recopy):
                yield Recopied(table.incarnation, self.ledger.upto)

    # ---- the log lane

    def run(self, job: Job) -> None:
        self.busy, self.job = True, job
        plan = job.plan
        segments = self.relay.covering(plan.low, plan.upto) if plan.low < plan.upto else []
        edges = sorted({plan.low, plan.upto, *(self.world.earlier_cut(self.relay, plan.low, plan.upto) for _ in range(job.writers - 1))})
        while len(edges) <= job.writers:
            edges.append(plan.upto)
        rules = {table.incarnation.table: plan.rule(table) for table in self.ledger.tables}
        rules.update(plan.rules)
        for writer in range(job.writers):
            names = [segment.name for segment in segments]
            low, high = edges[writer], edges[writer + 1]
            committed = {one.offset: one for one in self.relay.committed(low, high)}
            self.world.spawn(None, self.log_task(job, writer, low, high, names, rules, committed), "log")

    def log_task(
        self, job: Job, writer: int, after: int, upto: int, names: list[str], rules: dict[TableId, Rule], committed: dict[int, Decided]
    ) -> Steps[None]:
        world, rng, plan = self.world, self.world.rng, job.plan
        yield
        runs = 2 if rng.random() < world.profile.task_failure else 1
        for run in range(runs):
            nonce = world.nonce()
            rows: dict[str, list[Row]] = {}
            if writer == 0:
                self.replace(plan, rows)
            for name in names:
                data = world.store.data.get(name)
                if data is None:
                    if self.job is job and not job.failed:
                        world.missing_segment(self, name)
                    job.failed = True
                    return
                for offset, transaction, position in data[1]:
                    if not after < offset <= upto:
                        continue
                    changes: tuple[Change, ...] | None = transaction.changes
                    if transaction.committed:
                        changes = self.take_back(committed[offset], data[1])
                    if changes is None:
                        if self.job is job and not job.failed:
                            world.missing_segment(self, aside(committed[offset].group))
                        job.failed = True
                        return
                    self.emit(replace(transaction, changes=changes), offset, position, rules, rows)
            yield
            files = []
            for target, kept in rows.items():
                lake = world.lakes[target]
                name = str(StagedName(self.generation, False, plan.epoch, nonce, target))
                lake.storage[name] = tuple({row.key: row for row in kept}.values()) if lake.keyed else tuple(kept)
                files.append(StagedFile(target, name, after))
                yield
            if run + 1 < runs:
                continue
            if rng.random() < world.profile.task_failure:
                job.failed = True
                return
            emitting = sorted(name for name, rule in rules.items() if rule.live or rule.adopted or rule.adopting)
            if emitting and rng.random() < world.profile.stuck * 0.1:
                job.stuck, job.failed = rng.choice(emitting), True
                return
            yield
            seen = ((writer, nonce),)
            job.messages.append(
                Message(generation=self.generation, epoch=plan.epoch, writer=writer, nonce=nonce, seen=seen, files=tuple(files))
            )

    def take_back(self, decided: Decided, rows: tuple[tuple[int, Transaction, Position], ...]) -> tuple[Change, ...] | None:
        """What a prepared transaction changes: from where it lies aside, or from the segment that has both of its phases."""
        if decided.aside:
            return self.world.store.data.get(aside(decided.group))
        return next(one.prepares for at, one, _ in rows if at == decided.group.offset)

    def emit(
        self, transaction: Transaction, offset: int, position: Position, rules: dict[TableId, Rule], rows: dict[str, list[Row]]
    ) -> None:
        world = self.world
        for change in transaction.changes:
            rule = rules.get(change.table)
            if rule is None:
                continue
            adopting = next((one for one in rule.adopting if world.within(change.key, one.span, rule.extent or one.reading.extent)), None)
            adopted = self.adopted(change.key, rule)
            covered = self.covered(transaction.number, position)
            keyed = world.lakes[world.target_of(change.table)].keyed
            if emits(rule, offset=offset, adopted=adopted, adopting=adopting, keyed=keyed, covered=covered):
                row = Row((str(change.table), change.key), sequence.of_change(offset), change.value, f"t{transaction.number}")
                rows.setdefault(world.target_of(change.table), []).append(row)

    def covered(self, number: int, position: Position) -> Callable[[Adopting], bool]:
        """What the read's mark says of a transaction. A position says it only of the log that it is a position of."""
        reads = self.world.reads
        if self.world.profile.marks == "positions":
            at = (position.file, position.offset)
            return lambda adopting: at <= (reads[adopting.reading.nonce].high.file, reads[adopting.reading.nonce].high.offset)
        return lambda adopting: number in reads[adopting.reading.nonce].covered

    def adopted(self, key: int, rule: Rule) -> bool:
        if rule.extent is None:
            return rule.outside
        if self.world.within(key, None, rule.extent):
            return rule.outside
        return any(self.world.within(key, span, rule.extent) for span in rule.adopted)

    def replace(self, plan: EpochPlan, rows: dict[str, list[Row]]) -> None:
        """Deletes of what the lake has in a range that was read again and the read lacks."""
        world = self.world
        for rule in plan.rules.values():
            for adopting in rule.adopting:
                if adopting.replaces:
                    self.replace_one(world.target_of(rule.incarnation.table), rule, adopting, rows)

    def replace_one(self, target: str, rule: Rule, adopting: Adopting, rows: dict[str, list[Row]]) -> None:
        world, limit = self.world, sequence.of_chunk(adopting.visible)
        read = world.reads[adopting.reading.nonce]
        extent = rule.extent or adopting.reading.extent
        for (source, key), row in world.lakes[target].merged().items():
            within = source == str(rule.incarnation.table) and world.within(key, adopting.span, extent)
            if within and key not in read.rows and row.sequence <= limit:
                rows.setdefault(target, []).append(Row((source, key), limit, None, "replaced"))

    # ---- commit

    def commit(self) -> Steps[None]:
        machine = self.coordinator
        assert machine is not None
        while True:
            yield
            step = machine.next_step()
            if step is not None:
                yield from self.perform(machine, step)
            elif self.staged is not None and self.relay.newest is not None:
                job, plan = self.staged
                intent = yield from self.build(job, plan)
                self.staged = None
                refused = checks.refusal(plan, job.messages, writers=job.writers, sources=None, tables=self.ledger.tables)
                if intent is not None and refused is None:
                    self.offered(machine.offer(intent, plan.follows), intent)

    def offered(self, taken: bool, intent: Intent) -> None:
        """For whoever plants a bug here."""

    def build(self, job: Job, plan: EpochPlan) -> Steps[Intent | None]:
        world = self.world
        yield
        chunks: dict[str, list[str]] = {}
        for fact in plan.facts:
            if isinstance(fact, Adopted):
                reading = self.ledger.tables.reading(fact.incarnation, fact.ordinal)
                if reading is None or reading.report is None:
                    return None
                chunks.setdefault(world.target_of(fact.incarnation.table), []).extend(reading.report.files)
        logs: dict[str, list[StagedFile]] = {}
        for message in job.messages:
            for file in message.files:
                logs.setdefault(file.target, []).append(file)
        empties, untouched = self.emptied(plan), plan.untouched(self.ledger.tables)
        reshaping = {fact.incarnation.table for fact in plan.facts if isinstance(fact, Reshaped)} - untouched
        reshaped = {world.target_of(table) for table in reshaping}
        entries = []
        for target in sorted({*chunks, *logs, *empties, *reshaped}):
            lake = world.lakes[target]
            files = (*chunks.get(target, ()), *(file.name for file in sorted(logs.get(target, ()), key=lambda file: file.first)))
            new = lake.schema + 1 if target in reshaped else None
            previous = self.ledger.last_commits.get(target, "")
            shape = f"{self.generation}-{plan.epoch}".encode() if new is not None else b""
            entries.append(
                Entry(
                    target=target,
                    uuid=lake.uuid,
                    buckets=1,
                    schema=lake.schema,
                    new_schema=new,
                    base=lake.newest,
                    empties=empties.get(target, ()),
                    files=files,
                    messages=(),
                    previous=previous,
                    shape=shape,
                )
            )
        time_ms, segment = self.relay.committed_by(plan.upto, world.clock), self.relay.number_at(plan.upto)
        return intent_of(plan, nonce=world.nonce(), time_ms=time_ms, entries=tuple(entries), segment=segment)

    def emptied(self, plan: EpochPlan) -> dict[str, tuple[str, ...]]:
        empties: dict[str, tuple[str, ...]] = {}
        untouched = plan.untouched(self.ledger.tables)
        for fact in plan.facts:
            if isinstance(fact, Reborn | Truncated | Found) and fact.incarnation.table not in untouched:
                target = self.world.target_of(fact.incarnation.table)
                empties[target] = (*empties.get(target, ()), str(fact.incarnation.table))
        return empties

    def perform(self, machine: Coordinator, step: coordinator.Step) -> Steps[None]:
        store = self.world.store
        match step:
            case PutIntent(intent):
                machine.apply(IntentPut((yield from store.put_if_absent("intent", intent.epoch, intent))))
                self.won()
            case ReadIntent(epoch):
                machine.apply(IntentRead((yield from store.get("intent", epoch))))
                self.won()
            case ReadGeneration():
                machine.apply(GenerationRead((yield from store.newest("generation"))))
            case CommitTables(intent, entries):
                for entry in self.world.rng.sample(entries, len(entries)):
                    if self.world.rng.random() < 0.1:
                        # A try that hangs, is given up on, and comes to its end whenever it likes.
                        self.world.spawn(self, self.commit_late(machine, intent, entry), "late commit")
                    snapshot = yield from self.commit_table(intent, entry)
                    machine.apply(TableCommitted(intent.epoch, entry.target, snapshot))
            case RunListeners(intent):
                machine.apply(ListenersRan((yield from self.world.tell_listeners(intent))))
            case PutDone(done):
                self.world.claim_watermarks(done.epoch, self.ledger.decide_watermarks())
                machine.apply(DonePut((yield from store.settle("done", done.epoch, done))))
                yield from self.let_go()

    def won(self) -> None:
        """What the newest intent names is not left over."""
        if self.ledger.open is not None:
            self.leftovers.won(self.ledger.open)

    def commit_late(self, machine: Coordinator, intent: Intent, entry: Entry) -> Steps[None]:
        for _ in range(self.world.rng.randint(0, 30)):
            yield
        try:
            snapshot = yield from self.commit_table(intent, entry)
        except (Fenced, SourceDrift):
            return
        machine.apply(TableCommitted(intent.epoch, entry.target, snapshot))

    def commit_table(self, intent: Intent, entry: Entry) -> Steps[int]:
        world, lake = self.world, self.world.lakes[entry.target]
        while True:
            view = yield from world.faulty.read(lambda: lake.view(entry.base, entry.files))
            verdict = publish.judge(intent, entry, view)
            if isinstance(verdict, publish.EpochInLake):
                snapshot = verdict.snapshot
                break
            try:
                yield from self.hold(entry)
                if (yield from self.publish(intent, entry, verdict.on)):
                    snapshot = verdict.on + 1
                    break
            except (Unavailable, OutcomeUnknown):
                continue
        while publish.judge_schema(entry, *(yield from world.faulty.read(lambda: (lake.schema, lake.shape)))):
            try:
                yield from world.faulty.call(lambda: lake.alter(entry.schema, entry.new_schema or 0, entry.shape))
            except (Unavailable, OutcomeUnknown):
                continue
        return snapshot

    def hold(self, entry: Entry) -> Steps[None]:
        """Others do not expire what tells whether the entry is there."""
        lake = self.world.lakes[entry.target]
        yield from self.world.faulty.call(lambda: lake.hold(entry.base + 1))

    def publish(self, intent: Intent, entry: Entry, on: int) -> Steps[bool]:
        world = self.world
        return (yield from world.faulty.call(lambda: world.publish(self.generation, intent, entry, on)))

    def let_go(self) -> Steps[None]:
        """What the done epoch covers is asked for by nobody any more."""
        relay, store = self.relay, self.world.store
        held = [job.plan.low for job in (self.job if self.busy else None, self.staged[0] if self.staged else None) if job is not None]
        if (visible := self.ledger.tables.lowest_visible()) is not None:
            held.append(visible)
        relay.raise_floor(relay.decide_floor(self.ledger.done_upto, min(held, default=None)))
        gone, over = relay.deletable(self.ledger.segment), relay.over
        relay.forget(gone)
        for group in over:
            yield from store.delete_data(aside(group))
        for sealed in gone:
            yield from store.delete([("relay", sealed.number)])
            yield from store.delete_data(sealed.name)
        for target, staged in self.leftovers.take(self.standing()):
            # By a thread, which may be late and may outlive the driver.
            self.world.spawn(None, self.discard(target, staged.files), "discard")
        if self.world.rng.random() < 0.5:
            self.world.spawn(self, self.clean(), "clean")
        if self.world.rng.random() < self.world.profile.trim:
            yield from self.sum_up()

    def standing(self) -> cleaning.CleaningView:
        ledger = self.ledger
        under_way = {reading.launch.job for reading in ledger.tables.readings()}
        named = self.coordinator.named if self.coordinator is not None else set()
        return cleaning.CleaningView(self.generation, ledger.epoch, ledger.generation, self.jobs, under_way, named)

    def discard(self, target: str, names: tuple[str, ...]) -> Steps[None]:
        yield
        for name in names:
            self.world.lakes[target].storage.pop(name, None)

    def sweep(self, lake: LakeTable, standing: cleaning.CleaningView) -> Steps[None]:
        """A task, which may be late and may outlive the driver. What it lists first and deletes last is the same."""
        yield
        listed = list(lake.storage)
        yield
        standing = replace(standing, named=standing.named | lake.referenced())
        yield
        for text in listed:
            if text.startswith("sm-") and cleaning.deletable(StagedName.parse(text), standing):
                lake.storage.pop(text, None)

    def clean(self) -> Steps[None]:
        world = self.world
        for lake in world.lakes.values():
            if world.rng.random() < 0.5:
                world.spawn(None, self.sweep(lake, self.standing()), "sweep")
            else:
                yield from self.sweep(lake, self.standing())
            yield
        held = [segment.number for segment in self.relay.segments]
        below = min([*held, self.ledger.done_segment])
        yield from world.store.delete(sorted(key for key in world.store.records if key[0] == "relay" and key[1] < below))
        listed = [int(name.removeprefix("held-")) for name in list(world.store.data) if name.startswith("held-")]
        for number in self.relay.needless(listed):
            yield from world.store.delete_data(f"held-{number}")
        for name, number in list(world.segment_numbers.items()):
            if name in world.store.data and self.relay.leftover(number, name, self.ledger.done_segment):
                yield from world.store.delete_data(name)

    def sum_up(self) -> Steps[None]:
        """Write a summary, then trim what lies below the oldest of the three that are kept."""
        store = self.world.store
        if self.ledger.open is not None:
            return
        record = summary.summarise(self.ledger)
        newest = yield from store.newest("summary")
        if newest and (before := (yield from store.get("summary", newest))) is not None and before.epoch >= record.epoch:
            return
        found = yield from store.settle("summary", newest + 1, record)
        oldest = yield from store.get("summary", newest - 1)
        if found != record or oldest is None:
            return
        for kind, below in (("intent", oldest.epoch), ("done", oldest.epoch), ("summary", newest - 1)):
            listed = yield from self.world.faulty.read(lambda kind=kind: sorted(n for name, n in store.records if name == kind))  # type: ignore[misc]
            yield from store.delete([(kind, number) for number in listed if number < below])
