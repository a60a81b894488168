"""How good the search is, and what it costs, on random simulated servers with a known best answer.

    python perf/benchmarks/search.py              # 300 spaces
    python perf/benchmarks/search.py --quick      # 40 spaces

Every space is searched by `quick` with its confirmation, and by Model Analyzer's two rules (search_bench/rules.py); by
`grid` and by exhaustive search in every tenth space, since those take a thousand measurements each. A pick is judged by
the simulated server without noise over 20,000 requests: its share of the best throughput within the budget (above 1
where it found a load that the truth's own search did not), and whether its true percentile breaks the budget. Below the
table stands what is asked of `quick`, and whether it is met; and its share of the best that leaves some of the budget
(search_bench/criteria.py says how much), since windows that differ by several percent cannot prove what uses all of it.
The speed of the machine does not matter.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from multiprocessing import Pool
from pathlib import Path

from search_bench.criteria import PROVABLE, Result, report
from search_bench.rules import analyzer_brute, analyzer_quick, exhaustive

from pilot_perf.confirm import next_confirmation
from pilot_perf.measures import Measurement, Trial
from pilot_perf.search.grid import grid
from pilot_perf.search.quick import quick
from pilot_perf.search.task import SearchTask, Strategy
from pilot_perf.simulated_spaces import Case, random_case
from pilot_perf.study import MAX_MEASUREMENTS

EVERY = 10
# Requests of a short and of a long window, at least and per request in flight.
SHORT, LONG = (400, 12), (1000, 30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", type=int, default=300)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="40 spaces")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every result to this file")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="search nothing: only show what --json has written"
    )
    options = parser.parse_args()
    if options.table:
        print(report(_sorted(Result(**row) for file in options.table for row in json.loads(file.read_text())["rows"])))
        return 0
    seeds = range(options.first_seed, options.first_seed + (40 if options.quick else options.spaces))
    started = time.monotonic()
    # The matrices are small: more threads than one only wait for each other.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with Pool(min(2, os.cpu_count() or 1)) as pool:
        results = [result for some in pool.imap_unordered(search_space, seeds, chunksize=5) for result in some]
    results = _sorted(results)
    if options.json:
        rows = [asdict(result) for result in results]
        options.json.write_text(json.dumps({"seeds": [seeds.start, seeds.stop], "rows": rows}, indent=1))
    print(f"{len(seeds)} spaces in {time.monotonic() - started:.0f} s\n")
    print(report(results))
    return 0


def _sorted(results: Iterable[Result]) -> list[Result]:
    return sorted(results, key=lambda result: (result.rule, result.seed))


def search_space(seed: int) -> list[Result]:
    case = random_case(seed)
    if not case.optimum_per_s():
        return []
    rules: dict[str, Strategy] = {"analyzer quick": analyzer_quick, "analyzer brute": analyzer_brute}
    if seed % EVERY == 0:
        rules |= {"grid": grid, "exhaustive": exhaustive}
    task = SearchTask(case.space, case.slo, case.model.cores, MAX_MEASUREMENTS)
    results = [confirmed(case, task, seed)]
    for name, rule in rules.items():
        history, winner = drive(case, rule, task, most=10**6)
        results.append(judged(case, seed, name, len(history), 0, winner.trial if winner else None))
    return results


def confirmed(case: Case, task: SearchTask, seed: int) -> Result:
    """`quick`, then the confirmation of its winner as in a real study."""
    history, winner = drive(case, quick, task, most=task.max_measurements)
    made: list[Measurement] = []
    pick = None if winner is None else winner.trial
    if pick is not None and not pick.knobs.is_untuned:
        while (step := next_confirmation(history, made, case.slo)).trial is not None:
            made.append(measured(case, step.trial, LONG, len(history) + len(made)))
        pick = None
        if step.verdict is not None:
            pick = step.verdict.chosen.trial if step.verdict.chosen_keeps else step.verdict.untuned.trial
    return judged(case, seed, "quick", len(history), len(made), pick)


def drive(
    case: Case, rule: Callable[[SearchTask], object], task: SearchTask, most: int
) -> tuple[list[Measurement], Measurement | None]:
    """All measurements of one search, and its winner: the best that it measured where `most` ended it."""
    made: dict[object, Measurement] = {}
    search = rule(task)
    try:
        trial = next(search)  # type: ignore[call-overload]
        while len(made) < most:
            if trial.point not in made:
                made[trial.point] = measured(case, trial, SHORT, len(made))
            trial = search.send(made[trial.point])  # type: ignore[attr-defined]
    except StopIteration as stop:
        return list(made.values()), stop.value
    kept = [m for m in made.values() if m.figures and case.slo.is_kept(m.figures, 0.95)]
    return list(made.values()), max(kept, key=lambda m: m.figures.throughput_per_s if m.figures else 0.0, default=None)


def measured(case: Case, trial: Trial, window: tuple[int, int], number: int) -> Measurement:
    return case.model.measure(trial, max(window[0], window[1] * trial.concurrency), number)


def judged(case: Case, seed: int, rule: str, num_search: int, num_confirm: int, pick: Trial | None) -> Result:
    share = provable = use = None
    if pick is not None:
        use = case.true_use(pick.knobs, pick.concurrency)
        rate = case.true_figures(pick.knobs, pick.concurrency).throughput_per_s
        share = rate / case.optimum_per_s()
        roomy_per_s = case.optimum_per_s(PROVABLE)
        provable = rate / roomy_per_s if roomy_per_s else None
    return Result(seed, rule, len(case.space.configurations()), num_search, num_confirm, share, provable, use)


if __name__ == "__main__":
    sys.exit(main())
