"""From a staged epoch to a done one, in one driver.

States. `STAGES` is the table of transitions. Each stage has one next step. The shell performs it and returns its outcome. A step that is
repeated, after a crash or a lost reply, has the same result.

Must never happen. Any step after `FENCED`. Any effect before the generation was read again *after* the records were loaded: otherwise a
driver that was slow to start would delete what a newer one relies on. An intent that was planned from anything but the newest won
intent, or before the previous epoch is done. A lake effect before the generation was read again *after* the intent was won: a newer
driver owns it then.

Memory. The open intent, one offered intent, and a number per lake table of the open epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

from snowmelt.commit.ledger import Ledger
from snowmelt.commit.listeners import Reached
from snowmelt.commit.records import Committed, Done, Entry, Intent
from snowmelt.errors import Corrupt, Fenced, InvariantBroken, check
from snowmelt.model.numbers import EpochNumber, GenerationNumber


class Stage(Enum):
    """Only this driver knows it. Durable is which records exist."""

    STARTING = "starting"
    FREE = "free"
    ASKING = "asking"
    READING_BACK = "reading back"
    VERIFYING = "verifying"
    COMMITTING = "committing"
    LISTENING = "listening"
    CLOSING = "closing"
    FENCED = "fenced"


class StageTrigger(Enum):
    OFFERED = "an intent is offered"
    FOUND_OPEN = "no newer generation exists, and an intent is open"
    WON = "the put won"
    UNSURE = "an intent is there, or the outcome is unknown"
    ABSENT = "no intent is there"
    OURS = "our intent is there"
    OLDER = "an older generation's intent is there"
    NEWER = "a newer generation exists"
    STILL_OURS = "no newer generation exists"
    ALL_COMMITTED = "every lake table has the epoch"
    HEARD = "the listeners ran"
    CLOSED = "done is written"


STAGES: Final[dict[tuple[Stage, StageTrigger], Stage]] = {
    (Stage.STARTING, StageTrigger.STILL_OURS): Stage.FREE,
    (Stage.STARTING, StageTrigger.FOUND_OPEN): Stage.COMMITTING,
    (Stage.STARTING, StageTrigger.NEWER): Stage.FENCED,
    (Stage.FREE, StageTrigger.OFFERED): Stage.ASKING,
    (Stage.ASKING, StageTrigger.WON): Stage.VERIFYING,
    (Stage.ASKING, StageTrigger.UNSURE): Stage.READING_BACK,
    (Stage.READING_BACK, StageTrigger.ABSENT): Stage.ASKING,
    (Stage.READING_BACK, StageTrigger.OURS): Stage.VERIFYING,
    (Stage.READING_BACK, StageTrigger.OLDER): Stage.VERIFYING,
    (Stage.READING_BACK, StageTrigger.NEWER): Stage.FENCED,
    (Stage.VERIFYING, StageTrigger.STILL_OURS): Stage.COMMITTING,
    (Stage.VERIFYING, StageTrigger.NEWER): Stage.FENCED,
    (Stage.COMMITTING, StageTrigger.ALL_COMMITTED): Stage.LISTENING,
    (Stage.LISTENING, StageTrigger.HEARD): Stage.CLOSING,
    (Stage.CLOSING, StageTrigger.CLOSED): Stage.FREE,
}


# ---- what the shell does next


@dataclass(frozen=True, slots=True)
class PutIntent:
    """Put the intent if its number is free."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class ReadIntent:
    epoch: EpochNumber


@dataclass(frozen=True, slots=True)
class ReadGeneration:
    """Read the newest generation."""


@dataclass(frozen=True, slots=True)
class CommitTables:
    """Commit the open epoch to these lake tables, in any order, each as `publish.judge` decides."""

    intent: Intent
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class RunListeners:
    """Run the listeners, which may have run for this epoch before, and take their new state."""

    intent: Intent
    state: str
    reached: Mapping[str, Reached]
    """By lake table."""


@dataclass(frozen=True, slots=True)
class PutDone:
    done: Done


Step = PutIntent | ReadIntent | ReadGeneration | CommitTables | RunListeners | PutDone


# ---- what came of it


@dataclass(frozen=True, slots=True)
class IntentPut:
    won: bool | None
    """None: the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class IntentRead:
    intent: Intent | None


@dataclass(frozen=True, slots=True)
class GenerationRead:
    newest: int


@dataclass(frozen=True, slots=True)
class TableCommitted:
    """A lake table has the epoch. A late answer about a closed epoch changes nothing."""

    epoch: EpochNumber
    target: str
    snapshot: int


@dataclass(frozen=True, slots=True)
class ListenersRan:
    state: str


@dataclass(frozen=True, slots=True)
class DonePut:
    """The record that exists now: ours, or the one of the driver that was first."""

    done: Done


Outcome = IntentPut | IntentRead | GenerationRead | TableCommitted | ListenersRan | DonePut


class Coordinator:
    """The commits of one driver, one epoch after the other. Only `apply` changes its stage."""

    def __init__(self, generation: GenerationNumber, ledger: Ledger) -> None:
        self.generation = generation
        self.ledger = ledger
        self.stage = Stage.STARTING
        self._offered: list[Intent] = []
        """The offered intent, or empty."""
        self._committed: dict[str, int] = {}
        self._listeners = ""

    @property
    def may_plan(self) -> bool:
        """Whether the next epoch can be planned: the newest intent is won, and it is done or allows the overlap."""
        if self.stage is Stage.FREE:
            return True
        overlapping = self.stage in (Stage.COMMITTING, Stage.LISTENING, Stage.CLOSING)
        return overlapping and self.ledger.open is not None and self.ledger.open.overlaps

    @property
    def named(self) -> set[str]:
        """Files of the open intent and of the offered one, which may be won: no cleaning may touch them."""
        intents = [*self._offered, *([] if self.ledger.open is None else [self.ledger.open])]
        return {name for intent in intents for entry in intent.entries for name in entry.files}

    def offer(self, intent: Intent, follows: str) -> bool:
        """Accept an intent that was planned from the intent `follows`. False: that is not the newest, so drop the offered one."""
        check(intent.generation == self.generation, "an intent of another generation is offered", f"{intent.generation}")
        check(self.stage is Stage.FREE, "an intent is offered while another is under way", self.stage.value)
        if follows != self.ledger.identity:
            return False
        next_one = (intent.epoch, intent.after) == (self.ledger.epoch + 1, self.ledger.upto)
        check(next_one, "an intent is offered that does not follow", f"{intent.epoch} from {intent.after}")
        self._offered = [intent]
        self._move(StageTrigger.OFFERED)
        return True

    def next_step(self) -> Step | None:
        """The next step; None when there is nothing to commit."""
        ledger = self.ledger
        match self.stage, ledger.open, self._offered:
            case Stage.FENCED, _, _:
                raise Fenced("a newer driver runs this pipeline", detail=f"this is generation {self.generation}")
            case Stage.ASKING, _, [offered]:
                return PutIntent(offered)
            case Stage.READING_BACK, _, [offered]:
                return ReadIntent(offered.epoch)
            case ((Stage.STARTING | Stage.VERIFYING), _, _):
                return ReadGeneration()
            case Stage.COMMITTING, Intent() as intent, _:
                return CommitTables(intent, tuple(entry for entry in intent.entries if entry.target not in self._committed))
            case Stage.LISTENING, Intent() as intent, _:
                return RunListeners(intent, ledger.listeners, ledger.decide_reached(self._committed))
            case Stage.CLOSING, _, _:
                return PutDone(ledger.decide_done((Committed(*pair) for pair in sorted(self._committed.items())), self._listeners))
            case _:
                return None

    def apply(self, outcome: Outcome) -> None:
        match outcome:
            case IntentPut(won):
                self._move(StageTrigger.WON if won else StageTrigger.UNSURE)
                for offered in self._offered if won else []:
                    self._take(offered)
            case IntentRead(intent):
                self._read_back(intent)
            case GenerationRead(newest):
                if newest < self.generation:
                    raise Corrupt("the record of this driver's generation is gone", detail=f"{self.generation}, the newest is {newest}")
                if newest > self.generation:
                    self._move(StageTrigger.NEWER)
                else:
                    found_open = self.stage is Stage.STARTING and self.ledger.open is not None
                    self._move(StageTrigger.FOUND_OPEN if found_open else StageTrigger.STILL_OURS)
                self._when_committed()
            case TableCommitted(epoch, target, snapshot):
                if self.stage is Stage.COMMITTING and epoch == self.ledger.epoch and self._touches(target):
                    self._committed[target] = snapshot
                    self._when_committed()
            case ListenersRan(state):
                self._move(StageTrigger.HEARD)
                self._listeners = state
            case DonePut(done):
                same = (done.epoch, done.identity) == (self.ledger.epoch, self.ledger.identity)
                check(same, "another intent is done than the open one", f"{done.epoch} as {done.identity}")
                self._move(StageTrigger.CLOSED)
                self._committed.clear()
                self.ledger.apply_done(done)
            case _ as never:
                assert_never(never)

    def _move(self, trigger: StageTrigger) -> None:
        stage = STAGES.get((self.stage, trigger))
        if stage is None:
            raise InvariantBroken("invalid transition of a commit", detail=f"it is {self.stage.value}: {trigger.value}")
        self.stage = stage

    def _take(self, intent: Intent) -> None:
        """This intent is now the newest."""
        self._offered = []
        self.ledger.apply_intent(intent)

    def _read_back(self, found: Intent | None) -> None:
        check(self.stage is Stage.READING_BACK, "an intent was read without a request", self.stage.value)
        right = found is None or found.epoch == self.ledger.epoch + 1
        check(right, "another intent was read back than was put")
        if found is None:
            self._move(StageTrigger.ABSENT)
        elif found.identity in [offered.identity for offered in self._offered]:
            self._move(StageTrigger.OURS)
            self._take(found)
        elif found.generation < self.generation:
            # The driver of that intent may be dead or slow. Its intent is the epoch; ours is dropped with all that was planned on it.
            self._move(StageTrigger.OLDER)
            self._take(found)
        else:
            self._move(StageTrigger.NEWER)

    def _touches(self, target: str) -> bool:
        return self.ledger.open is not None and any(entry.target == target for entry in self.ledger.open.entries)

    def _when_committed(self) -> None:
        intent = self.ledger.open
        if self.stage is Stage.COMMITTING and intent is not None and all(entry.target in self._committed for entry in intent.entries):
            self._move(StageTrigger.ALL_COMMITTED)
