"""How far a work is, in a bar or in lines."""

from __future__ import annotations

import io
from types import SimpleNamespace

from rich.console import Console

from rocketpost.spark.pipelines.progress import ShownWork, Tasks, count_running_tasks


class Tracker:
    """A status tracker of two jobs, one stage of which is gone already."""

    def getActiveJobsIds(self) -> list[int]:
        return [1, 2, 3]

    def getJobInfo(self, job: int) -> SimpleNamespace | None:
        return {1: SimpleNamespace(stageIds=[1, 2]), 2: SimpleNamespace(stageIds=[3])}.get(job)

    def getStageInfo(self, stage: int) -> SimpleNamespace | None:
        done = {1: 4, 2: 1}
        return SimpleNamespace(numTasks=4, numCompletedTasks=done[stage]) if stage in done else None


def test_tasks_of_running_jobs_are_added_up() -> None:
    assert count_running_tasks(Tracker()) == Tasks(5, 8)
    assert Tasks(0, 0).share == 0
    assert Tasks(1, 4).share == 0.25


class Work:
    """A work that is shown to nobody, with hands on its clock and its tasks."""

    def __init__(self, *, is_terminal: bool) -> None:
        self.now = 0.0
        self.tasks = Tasks(0, 0)
        self.out = io.StringIO()
        console = Console(file=self.out, force_terminal=is_terminal, width=120, color_system=None)
        self.shown = ShownWork(
            console, "archiving", look=lambda: self.tasks, clock=lambda: self.now
        )


def test_without_a_terminal_there_is_a_line_for_every_count() -> None:
    work = Work(is_terminal=False)
    work.shown.count(0, 200, ahead=80)
    assert work.out.getvalue() == ""
    work.shown.count(80, 200, ahead=80)
    assert work.out.getvalue() == "archiving: 80 of 200 messages\n"


def test_without_a_terminal_tasks_are_said_now_and_then() -> None:
    work = Work(is_terminal=False)
    work.tasks = Tasks(3, 8)
    work.shown.look()
    assert work.out.getvalue() == ""
    work.now = 10.0
    work.shown.look()
    work.now = 15.0
    work.shown.look()
    assert work.out.getvalue() == "archiving: 3 of 8 tasks\n"
    work.shown.count(0, 1000)
    work.now = 25.0
    work.shown.look()
    assert work.out.getvalue().endswith("archiving: 0 of 1,000 messages, 3 of 8 tasks\n")


def test_on_a_terminal_tasks_move_the_bar_between_counts() -> None:
    work = Work(is_terminal=True)
    with work.shown:
        work.shown.count(100, 300, ahead=100)
        work.tasks = Tasks(1, 4)
        work.shown.look()
    assert "125 of 300 messages" in work.out.getvalue()


def test_on_a_terminal_without_counts_the_bar_shows_tasks() -> None:
    work = Work(is_terminal=True)
    with work.shown:
        work.tasks = Tasks(6, 8)
        work.shown.look()
    assert "6/8 tasks" in work.out.getvalue()
    assert "75%" in work.out.getvalue()
