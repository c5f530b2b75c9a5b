"""Carries out the jobs of a table, some at a time; what is finished is not run again."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path

import torch

from evenfed.core.errors import ConfigError, DataError, EvenfedError
from evenfed.data.files import data_folders
from evenfed.data.registry import load, sources
from evenfed.papers import store
from evenfed.papers.recipe import Job, Paper, Setting, Table, paper
from evenfed.papers.store import Parts, Results, Run

Say = Callable[[str], None]


class MissingDataError(DataError):
    """The data of a table are not at hand."""


def rebuild(
    wanted: Paper,
    table: Table,
    setting: Setting,
    *,
    folder: Path = store.FOLDER,
    jobs: int = 1,
    say: Say = lambda message: None,
    known: Sequence[Results] = (),
) -> Results:
    """Run what is missing of a table, and write its results.

    Parameters
    ----------
    folder : path
        Holds `parts/` (finished jobs) and `results/`.
    jobs : int
        Processes, of one thread each. They change no number.
    say : callable
        Is told of every job.
    known : sequence of Results
        Jobs with the settings and versions of their runs are not run again.
    """
    store.code()  # before the first job: the files may change while it runs
    if not setting.seeds or len(set(setting.seeds)) < len(setting.seeds):
        raise ConfigError(f"seeds must be different numbers, at least one, not {setting.seeds}")
    planned = list(table.jobs(setting))
    keys = [job.key for job in planned]
    assert len(set(keys)) == len(keys), f"{table.key} has two jobs of one name"
    parts = Parts(wanted.name, folder)
    found = store.kept(known, planned)
    found |= {job.key: run for job in planned if (run := parts.get(job)) is not None}
    missing = [job for job in planned if job.key not in found]
    if found:
        say(f"{len(found)} of {len(planned)} jobs are finished already")
    check_data(wanted, table, missing)
    for run in _carried_out(wanted.name, table, setting, missing, jobs):
        parts.put(run)
        found[run.job] = run
        say(f"{len(found)} of {len(planned)}: {run.job}, {run.seconds:.0f} s")
    results = store.collected(wanted.name, table.key, setting, (found[key] for key in keys), jobs)
    store.write(results, folder)
    return results


def otherwise(
    wanted: Paper, table: Table, setting: Setting, keys: Sequence[str], variables: dict[str, str]
) -> list[Run]:
    """Jobs again, in a process that is started with other variables of the environment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as lane:
            started = [lane.submit(_elsewhere, wanted.name, table.key, setting, k) for k in keys]
            return [future.result() for future in started]
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_data(wanted: Paper, table: Table, jobs: Sequence[Job]) -> None:
    """Refuse to begin where the data of a job are not at hand."""
    used = {job.column for job in jobs}
    known = sources()
    for name in sorted({c.dataset for c in table.columns if c.key in used}):
        if known[name].needs == "nothing":
            continue
        if any((folder / name).is_dir() for folder in data_folders()):
            continue
        try:
            load(name)  # some are fetched
        except EvenfedError as error:
            raise MissingDataError(
                f"{table.title} of paper '{wanted.name}' needs the dataset '{name}' "
                f"({known[name].source}): {error}"
            ) from error


def _carried_out(
    name: str, table: Table, setting: Setting, missing: Sequence[Job], jobs: int
) -> Iterator[Run]:
    """Finished jobs, as they come."""
    if jobs <= 1 or len(missing) < 2:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for job in missing:
                yield _one(table, job)
        finally:
            torch.set_num_threads(before)
        return
    waiting = _groups(missing)
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        lanes = [
            stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            for _ in range(min(jobs, len(waiting)))
        ]
        running: dict[Future[Run], tuple[ProcessPoolExecutor, list[Job]]] = {}

        def go_on(lane: ProcessPoolExecutor, group: list[Job]) -> None:
            if not group and not waiting:
                return
            group = group or waiting.pop(0)
            job = group.pop(0)
            running[lane.submit(_elsewhere, name, table.key, setting, job.key)] = lane, group

        for lane in lanes:
            go_on(lane, [])
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                run = future.result()
                go_on(*running.pop(future))
                yield run


def _groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that share work, longest group first: the last ones to end are short."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.together or f"alone: {job.key}", []).append(job)
    return sorted(groups.values(), key=lambda group: -sum(job.seconds for job in group))


def _one(table: Table, job: Job) -> Run:
    begin = time.process_time()
    outcome = table.run(job)
    unexpected = set(outcome.values) - set(job.rows)
    assert not unexpected, f"job {job.key} filled rows {unexpected}"
    return store.finished(job, outcome, time.process_time() - begin)


def _elsewhere(name: str, key: str, setting: Setting, job: str) -> Run:
    """A job in a process of its own, found again by its name."""
    store.code()
    torch.set_num_threads(1)
    table = paper(name).table(key)
    return _one(table, next(j for j in table.jobs(setting) if j.key == job))
