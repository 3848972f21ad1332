"""Commits of many tables at once, and notices to listeners (seed 004)."""

from __future__ import annotations

from typing import Final

from tests.mutants import Lane, Mutant

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        id="M140",
        seed="004",
        statement="a driver that begins does not tell what was perhaps not told",
        file="driving/listening.py",
        old="        if notice is not None and owed:\n",
        new="        if notice is not None and not owed:\n",
        tests=("unit/test_notices.py::TestOwed::test_a_driver_that_begins_gives_the_notice_that_perhaps_was_not_taken",),
    ),
    Mutant(
        id="N1",
        seed="004",
        statement="an epoch that brings nothing loses the notice before it",
        file="commit/notices.py",
        old="    return decide_reminder(before, reached)\n",
        new="    return None\n",
        tests=("unit/test_notices.py::TestOwed::test_an_epoch_that_brings_nothing_keeps_the_notice_before_it_as_the_newest",),
    ),
    Mutant(
        id="N2",
        seed="004",
        statement="the state says less of a listener than it said before",
        file="commit/notices.py",
        old="ListenerProgress(max(last.epoch, now.epoch), now.why",
        new="ListenerProgress(now.epoch, now.why",
        tests=("unit/test_notices.py::TestOwed::test_what_is_known_of_a_listener_is_in_the_state_and_never_goes_back",),
    ),
    Mutant(
        id="N3",
        seed="004",
        statement="a call that failed counts as taken",
        file="engine/notices/notifier.py",
        old="ListenerProgress(before.epoch, why) if why else",
        new="ListenerProgress(due[0], why) if why else",
        tests=("unit/test_notices.py::TestNotifier::test_one_that_fails_is_called_again_until_it_takes_it_and_told_once",),
    ),
    Mutant(
        id="N4",
        seed="004",
        statement="a program that hangs is killed and its children are not",
        file="engine/notices/calls.py",
        old="os.killpg(process.pid, signal.SIGKILL)",
        new="os.kill(process.pid, signal.SIGKILL)",
        tests=("unit/test_notices.py::TestCommand::test_one_that_hangs_is_killed_with_its_children",),
    ),
    Mutant(
        id="N5",
        seed="004",
        statement="a server that answers byte by byte is waited for without end",
        file="engine/notices/calls.py",
        old="    timer.start()\n",
        new="",
        tests=("unit/test_notices.py::TestWebhook::test_one_that_answers_byte_by_byte_is_cut_off_in_time",),
    ),
    Mutant(
        id="N6",
        seed="004",
        statement="a redirect counts as an answer",
        file="engine/notices/calls.py",
        old="        if not 200 <= status < 300:\n",
        new="        if not 200 <= status < 400:\n",
        tests=("unit/test_notices.py::TestWebhook::test_a_redirect_leads_nowhere",),
    ),
    Mutant(
        id="N7",
        seed="004",
        statement="another error than Fenced decides of a fenced driver",
        file="engine/driver/judging.py",
        old="(judge(error).value, isinstance(error, Fenced))",
        new="judge(error).value",
        tests=("unit/test_table_commits.py::test_of_several_errors_the_gravest_is_raised_and_fenced_before_all",),
    ),
    Mutant(
        id="N8",
        seed="004",
        statement="after a failure other tables are begun",
        file="engine/loop/lake_threads.py",
        old="    wait([future for future in under_way if not future.cancel()])\n",
        new="",
        tests=("unit/test_table_commits.py::test_after_a_failure_none_is_begun_that_waited_for_a_thread",),
    ),
    Mutant(
        id="P70",
        seed="004",
        statement="the name of a table's new folder is not made durable",
        file="sinks/paimon/table.py",
        old="sorted(holds_files | {os.path.dirname(one) for one in new})",
        new="sorted(holds_files)",
        tests=("integration/test_paimon.py::test_a_bucket_that_a_later_epoch_makes_is_durable_before_its_snapshot",),
        lane=Lane.SHELL,
    ),
)
