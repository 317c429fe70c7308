"""The operator with 1,000 jobs, beside KubeRay 1.6 with 1,000 RayClusters: time, memory, CPU.

    python benchmarks/operator_scale.py --up COMMAND --down COMMAND --kuberay FILE --kuberay-crds FOLDER

Each side gets a fresh control plane, one after the other, and the same treatment there: 20 single jobs, 100
at once, 1,000 at once. Ours then runs with all 1,000 coordinators played by `operator_scale_support/
coordinators.py`, taking steps and standing still. `--up` starts a control plane with KWOK for the nodes that
are annotated kwok.x-k8s.io/node=fake and prints the path of an admin kubeconfig; `{state}` in the commands
is a folder that both may use. README.md shows them for kwokctl. Takes about 12 minutes. Writes
`results/operator_scale.json`.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from operator_scale_support import sides
from operator_scale_support.api import Api, until
from operator_scale_support.measure import (
    account,
    burst,
    counts,
    latency,
    pod_bytes,
    prepare,
    remove_all,
    requests,
)
from operator_scale_support.processes import Process, fresh_cluster, running

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "operator_scale.json"
COORDINATORS = HERE / "operator_scale_support" / "coordinators.py"

NUM_SINGLE, FEW, MANY = 20, 100, 1000
SETTLE_S, MEASURE_S = 90.0, 120.0
"""Until numbers that were held back have been written; a whole number of their interval of a minute."""
STARTED_WITHIN_S = 60.0
RUNNING_WITHIN_S = 300.0

STATUS_WRITE = "PUT rltrainingjobs/status"

MAX_RATIO = 0.5
"""Of our time until every child is there and every status says so, to KubeRay's until its pods are there."""
MAX_GROWTH = 1.25
"""Of the cost per job from 100 to 1,000 jobs: flat, but for the noise."""
MAX_CPU, MAX_IDLE_CPU = 0.25, 0.02
MAX_WRITES = 1.05
MAX_LATENCY_S = 0.5
MAX_SIZE_DIFFERENCE = 0.05


async def measure_side(
    side: sides.Side, operator: Process, api: Api, options: argparse.Namespace
) -> dict[str, Any]:
    """Single jobs, some jobs, many jobs."""
    before = await counts(api, side)
    found: dict[str, Any] = {"single": await latency(api, side, operator, options.single)}
    say(side, f"single jobs: median {found['single']['median_s']:.3f} s until the pods are created")
    await remove_all(api, side, before)
    found["few"] = await burst(api, side, operator, options.few)
    say(side, words(found["few"]))
    await remove_all(api, side, before)
    found["many"] = await burst(api, side, operator, options.many)
    say(side, words(found["many"]))
    found |= await pod_bytes(api)
    found["peak_mb"] = operator.peak_mb()
    say(side, f"peak {found['peak_mb']:.0f} MB; pod specs of {found['spec_bytes']:.0f} bytes")
    return found


async def measure_steady(
    api: Api, side: sides.Side, operator: Process, kubeconfig: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """CPU and status writes of our operator while all coordinators take steps, and while none does."""
    command = [sys.executable, str(COORDINATORS), str(kubeconfig), sides.NAMESPACE]
    log = options.folder / "coordinators.log"
    with running(command, log) as coordinators:

        async def all_run() -> bool:
            operator.check()
            coordinators.check()
            jobs = await api.items(side.path)
            return all(job["status"]["phase"] == "Running" for job in jobs)

        await until(all_run, "all jobs running", within_s=RUNNING_WITHIN_S, every_s=2.0)
        await asyncio.sleep(SETTLE_S)
        stepping = await watch_cpu(api, operator, options)
        steps = [int(job["status"]["step"]) for job in await api.items(side.path)]
        stepping |= {"least_step": min(steps), "most_step": max(steps)}
        say(side, f"with progress: {stepping}")
        coordinators.tell(signal.SIGUSR1)
        await asyncio.sleep(SETTLE_S)
        still = await watch_cpu(api, operator, options)
        say(side, f"without progress: {still}")
        return {"stepping": stepping, "still": still, "peak_mb": operator.peak_mb()}


async def watch_cpu(api: Api, operator: Process, options: argparse.Namespace) -> dict[str, float]:
    """Share of a core, and status writes per job and minute, over a while."""
    asked, cpu_s, begun = await requests(api), operator.cpu_s(), time.monotonic()
    await asyncio.sleep(options.seconds)
    operator.check()
    took_s = time.monotonic() - begun
    cpu = (operator.cpu_s() - cpu_s) / took_s
    writes = (await requests(api)).get(STATUS_WRITE, 0.0) - asked.get(STATUS_WRITE, 0.0)
    return {"cpu": cpu, "writes_per_job_minute": writes / options.many / took_s * 60}


async def run_trimtab(options: argparse.Namespace) -> dict[str, Any]:
    """Ours, on a control plane of its own."""
    side = sides.trimtab()
    with fresh_cluster(options.up, options.down, options.folder / "state-trimtab") as kubeconfig:
        async with Api(kubeconfig) as api:
            await prepare(api, side)
            user = await account(api, kubeconfig)
            command = sides.trimtab_command(user, options.folder)
            with running(command, options.folder / "trimtab.log") as operator:
                await started(operator, "leading as")
                found = await measure_side(side, operator, api, options)
                found["steady"] = await measure_steady(api, side, operator, kubeconfig, options)
    return found


async def run_kuberay(options: argparse.Namespace) -> dict[str, Any]:
    """KubeRay, on a control plane of its own."""
    side = sides.kuberay(options.kuberay_crds)
    with fresh_cluster(options.up, options.down, options.folder / "state-kuberay") as kubeconfig:
        async with Api(kubeconfig) as api:
            await prepare(api, side)
            user = await account(api, kubeconfig)
            command = sides.kuberay_command(options.kuberay, user)
            with running(command, options.folder / "kuberay.log") as operator:
                await started(operator, "Starting workers")
                return await measure_side(side, operator, api, options)


async def started(operator: Process, words_of_log: str) -> None:
    """Wait until an operator has logged that it works."""

    async def logged() -> bool:
        operator.check()
        return words_of_log in operator.log.read_text(errors="replace")

    await until(logged, f"{operator.log.stem} started", within_s=STARTED_WITHIN_S)


def judge(results: dict[str, Any]) -> dict[str, bool]:
    """Each figure's bound, and whether it is met."""
    ours, ray, steady = results["trimtab"], results["kuberay"], results["trimtab"]["steady"]
    results["ratios"] = ratios = {
        "time": ours["many"]["told_s"] / ray["many"]["pods_s"],
        "memory": ours["peak_mb"] / ray["peak_mb"],
        "memory_with_all_coordinators": steady["peak_mb"] / ray["peak_mb"],
        "growth_of_time": growth(ours, "told_s"),
        "growth_of_cpu": growth(ours, "cpu_s"),
        "kuberay_growth_of_time": growth(ray, "pods_s"),
        "spec_bytes": ours["spec_bytes"] / ray["spec_bytes"],
    }
    return {
        "pod specs of equal size": abs(ratios["spec_bytes"] - 1) <= MAX_SIZE_DIFFERENCE,
        "time at most half of KubeRay's": ratios["time"] <= MAX_RATIO,
        "cost per job flat": max(ratios["growth_of_time"], ratios["growth_of_cpu"]) <= MAX_GROWTH,
        "memory below KubeRay's": ratios["memory"] < 1,
        "CPU with progress": steady["stepping"]["cpu"] < MAX_CPU,
        "one status write per job and minute": 0.5 < steady["stepping"]["writes_per_job_minute"] < MAX_WRITES,
        "CPU without progress": steady["still"]["cpu"] < MAX_IDLE_CPU,
        "single job": ours["single"]["median_s"] < MAX_LATENCY_S,
    }


def growth(side: dict[str, Any], what: str) -> float:
    """Cost per job with many jobs, to that with few."""
    many, few = side["many"], side["few"]
    return float((many[what] / many["jobs"]) / (few[what] / few["jobs"]))


def words(found: dict[str, Any]) -> str:
    """One line about a burst."""
    return ", ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in found.items()
        if not isinstance(value, dict)
    )


def say(side: sides.Side, text: str) -> None:
    """Progress, for whoever watches."""
    print(f"{side.name}: {text}", flush=True)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The operator with 1,000 jobs, beside KubeRay.")
    parser.add_argument("--up", required=True, metavar="COMMAND", help="starts a control plane with KWOK")
    parser.add_argument("--down", required=True, metavar="COMMAND", help="removes it")
    parser.add_argument("--kuberay", type=Path, required=True, metavar="FILE", help="KubeRay's operator")
    parser.add_argument("--kuberay-crds", type=Path, required=True, metavar="FOLDER", help="and its CRDs")
    parser.add_argument("--side", choices=["trimtab", "kuberay", "both"], default="both")
    parser.add_argument("--single", type=int, default=NUM_SINGLE)
    parser.add_argument("--few", type=int, default=FEW)
    parser.add_argument("--many", type=int, default=MANY)
    parser.add_argument("--seconds", type=float, default=MEASURE_S, help="of the running jobs' CPU time")
    parser.add_argument("--keep-logs", type=Path, metavar="FOLDER", help="keep the processes' output there")
    return parser.parse_args()


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both sides, or one."""
    results: dict[str, Any] = {}
    if options.side != "kuberay":
        results["trimtab"] = await run_trimtab(options)
    if options.side != "trimtab":
        results["kuberay"] = await run_kuberay(options)
    return results


def main() -> int:
    """Measure, compare, write."""
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no control plane is left behind
    with tempfile.TemporaryDirectory(prefix="trimtab-scale-") as name:
        options.folder = options.keep_logs or Path(name)
        options.folder.mkdir(exist_ok=True)
        results = asyncio.run(measure(options))
    if options.side != "both":
        print(json.dumps(results, indent=2))
        return 0
    results["met"] = judge(results)
    if (options.single, options.few, options.many) == (NUM_SINGLE, FEW, MANY):
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))
    return 0 if all(results["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
