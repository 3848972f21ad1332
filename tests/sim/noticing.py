"""A web server in the simulated world that takes notices, and the oracle that knows what it must have got."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from snowmelt.commit.listener_state import read_state
from snowmelt.commit.notices import ListenerProgress, Notice
from snowmelt.commit.records import Done
from snowmelt.errors import OutcomeUnknown, Unavailable
from tests.sim.lake import Violation
from tests.sim.store import Steps

if TYPE_CHECKING:
    from tests.sim.driver import Driver
    from tests.sim.world import World

HOOK = "hook"


class Hook:
    def __init__(self, world: World) -> None:
        self.world = world
        self.newest = 0
        """The newest epoch whose notice came."""
        self.away = False

    def take(self, notice: Notice) -> None:
        """Whichever driver gives it, and however late."""
        world = self.world
        intent = world.intents[notice.epoch]
        if notice.identity != intent.identity:
            raise Violation(f"the notice of epoch {notice.epoch} is of {notice.identity}, not of {intent.identity}")
        lacking = [entry.target for entry in intent.entries if (entry.target, notice.epoch) not in world.published]
        if lacking:
            raise Violation(f"a notice tells of epoch {notice.epoch}, which {lacking} do not have")
        for table in notice.tables:
            snapshot = world.lakes[table.target].snapshots.get(table.snapshot)
            made = [epoch for (target, epoch) in world.published if target == table.target and epoch <= notice.epoch]
            if snapshot is not None and snapshot.marker is not None and snapshot.marker[0] < max(made):
                raise Violation(f"the notice of epoch {notice.epoch} names snapshot {table.snapshot} of {table.target}, which is older")
        world.counts["notice again" if notice.epoch <= self.newest else "notice"] += 1
        self.newest = max(self.newest, notice.epoch)

    def check_done(self, done: Done) -> None:
        notices = read_state(done.listeners)[1]
        if HOOK not in notices.told:
            raise Violation(f"epoch {done.epoch} is done and says nothing of a listener")
        if notices.told[HOOK].epoch > self.newest:
            raise Violation(f"a listener counts as told of epoch {notices.told[HOOK].epoch} and never was")
        newest = next((epoch for epoch in range(done.epoch, 0, -1) if self.world.intents[epoch].entries), 0)
        if notices.epoch != newest:
            raise Violation(f"the newest notice with epoch {done.epoch} is that of {notices.epoch}, not of {newest}")

    def check_end(self) -> None:
        """What was not told before the last driver ended is told by the next one."""
        if self.world.dones:
            last = read_state(self.world.dones[max(self.world.dones)].listeners)[1]
            if self.newest < last.epoch:
                raise Violation(f"a listener was never told of epoch {last.epoch}")


class Caller:
    """Of one driver: it gives the newest notice until it is taken."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.due: Notice | None = None
        self.told: dict[str, ListenerProgress] = {}
        self.working = False

    def give(self, notice: Notice) -> dict[str, ListenerProgress]:
        before = self.told.get(HOOK, ListenerProgress())
        if self.due is not None or notice.epoch > before.epoch:
            self.due = notice
            if not self.working:
                self.working = True
                self.driver.world.spawn(self.driver, self.work(), "notices")
        return dict(self.told)

    def work(self) -> Steps[None]:
        world = self.driver.world
        while self.due is not None:
            notice, before = self.due, self.told.get(HOOK, ListenerProgress())
            if world.hook.away:
                yield
                continue
            try:
                yield from world.faulty.call(partial(world.hook.take, notice))
            except (Unavailable, OutcomeUnknown):
                self.told[HOOK] = ListenerProgress(before.epoch, "no answer")
                continue
            self.told[HOOK] = ListenerProgress(max(before.epoch, notice.epoch))
            if self.due is notice:
                self.due = None
        self.working = False
