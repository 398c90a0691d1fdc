"""Put faults into everything that can break, at random moments, and count what was lost.

``python -m benchmarks --suite faults --minutes 10`` runs every campaign. ``--replay CAMPAIGN:SEED`` repeats one trial.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tqdm import tqdm

from benchmarks.faults.calls import Calls
from benchmarks.faults.campaign import Campaign, Tally, run
from benchmarks.faults.disks import FaultyDisks
from benchmarks.faults.doors import Doors
from benchmarks.faults.files import DamagedFiles
from benchmarks.faults.images import OneBadImage
from benchmarks.faults.kills import KillGenerators, KillReproduce, KillTraining, KillWorkers
from benchmarks.faults.saves import KilledSaves
from benchmarks.faults.servers import Servers
from benchmarks.faults.threads import Threads
from benchmarks.measurement import ResultTable
from localscale.errors import near_misses

CAMPAIGNS: dict[str, type[Campaign]] = {
    Calls.name: Calls,
    FaultyDisks.name: FaultyDisks,
    Doors.name: Doors,
    OneBadImage.name: OneBadImage,
    DamagedFiles.name: DamagedFiles,
    KilledSaves.name: KilledSaves,
    KillGenerators.name: KillGenerators,
    KillReproduce.name: KillReproduce,
    KillTraining.name: KillTraining,
    KillWorkers.name: KillWorkers,
    Servers.name: Servers,
    Threads.name: Threads,
}
PACKAGES = ("localscale", "torch", "safetensors", "timm")
SHORT = 5  # trials of a campaign with --quick
JOBS = 2  # campaigns at a time
FULL = 10  # minutes in which every campaign reaches its goal on two cores
SLACK = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this suite."""
    options = parser.add_argument_group("options of --suite faults")
    options.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="time for all campaigns together; their goals are for 10 (default: %(default)s)",
    )
    options.add_argument("--seed", type=int, default=0, help="seed of the first trial (default: %(default)s)")
    options.add_argument("--replay", metavar="CAMPAIGN:SEED", help="repeat one trial, and write nothing")


def described(arguments: argparse.Namespace) -> list[str]:
    """Return the options that were given, as on the command line."""
    return [f"--minutes {arguments.minutes:g}"] + ([f"--seed {arguments.seed}"] if arguments.seed else [])


def measurements(arguments: argparse.Namespace) -> tuple[Callable[[str, bool], ResultTable], ...]:
    """Return one measurement: the table of all campaigns."""

    def faults(device: str, quick: bool) -> ResultTable:
        return survived(minutes=arguments.minutes, first=arguments.seed, quick=quick)

    return (faults,)


def survived(*, minutes: float, first: int = 0, quick: bool = False) -> ResultTable:
    """Run every campaign for as many trials as ``minutes`` allow; return how many of them it survived.

    Every campaign has a process of its own, two at a time, because some fork and so must not have threads. In ten
    minutes each reaches its goal; one that takes three times its share of the time is stopped.
    """
    kinds = sorted(CAMPAIGNS.values(), key=lambda kind: -kind.share)  # the longest first
    whole = sum(kind.share for kind in kinds)
    with ProcessPoolExecutor(JOBS, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {}
        for kind in kinds:
            most = SHORT if quick else math.ceil(kind.goal * minutes / FULL)
            seconds = SLACK * JOBS * 60 * minutes * kind.share / whole
            running[pool.submit(_conduct, kind.name, first, most, seconds)] = kind
        found = {}
        for done in tqdm(as_completed(running), total=len(running), desc="campaigns", unit="campaign", leave=False):
            found[running[done].name] = done.result()
    rows = [_row(CAMPAIGNS[name], found[name]) for name in CAMPAIGNS]
    note = (
        "Each trial draws one fault from its own seed. Failed: something was lost, changed or accepted silently, a "
        "foreign exception came out, or the trial did not end. `--replay CAMPAIGN:SEED` repeats a failure."
    )
    return ResultTable("Fault campaigns", note, rows)


def _conduct(name: str, first: int, most: int, seconds: float) -> Tally:
    return run(CAMPAIGNS[name](), itertools.count(first), seconds=seconds, most=most, progress=False)


def replay(name: str) -> str:
    """Repeat the trial called ``CAMPAIGN:SEED``; return what it gave as a sentence."""
    kind, _, seed = name.partition(":")
    if kind not in CAMPAIGNS or not seed.isdecimal():
        raise SystemExit(f"--replay {name}: expected CAMPAIGN:SEED; {near_misses(kind, CAMPAIGNS)}")
    tally = run(CAMPAIGNS[kind](), iter([int(seed)]), seconds=float("inf"))
    return next(iter(tally.failures.values()), "survived")


def _row(campaign: type[Campaign], tally: Tally) -> dict[str, object]:
    seeds = ", ".join(f"{campaign.name}:{seed}" for seed in list(tally.failures)[:5])
    reached = tally.tried >= campaign.goal and not tally.failures
    return {
        "campaign": campaign.name,
        "faults": campaign.about,
        "tried": tally.tried,
        "survived": tally.survived,
        "failed": len(tally.failures),
        "seeds of failures": seeds or "–",
        "goal": f"≥ {campaign.goal:,}, 0 failed: {'met' if reached else 'missed'}",
        "seconds": round(tally.seconds),
    }
