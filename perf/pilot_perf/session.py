"""Puts a study together from a running server, a model and what the user asked for, and runs it to its outcome."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_base.cpus import usable_cpus
from pilot_base.progress import Say, silent
from pilot_client import model_config, repository
from pilot_client.errors import ClientError, ModelNotReadyError
from pilot_perf.attribution import Attribution
from pilot_perf.bench import Bench
from pilot_perf.bottleneck import Bottleneck, bottleneck, bottleneck_of_members, last_of_answer
from pilot_perf.conditions import file_hash, machine, model_files, software, text_hash
from pilot_perf.config_override import apply
from pilot_perf.confirm import Verdict, drift_note
from pilot_perf.default_space import Levels, same_as_installed, space_for
from pilot_perf.ensemble import Members, ensemble_space, members_of, same_as_installed_members
from pilot_perf.errors import PerfError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.lifeline import Lifeline
from pilot_perf.loading import Loader
from pilot_perf.measures import Measurement
from pilot_perf.open_loop import OpenLoop
from pilot_perf.overload import Protection
from pilot_perf.remote import server_version
from pilot_perf.replicas import Replicas, replicas_for, served_by_one, served_within_budget
from pilot_perf.requests import RequestOptions, Requests, requests_for
from pilot_perf.schedule import read_trace
from pilot_perf.search.best import nearest_miss
from pilot_perf.search.space import Space
from pilot_perf.search.strategies import STRATEGIES
from pilot_perf.slo import Slo
from pilot_perf.store import Store
from pilot_perf.study import CONFIRM_WINDOWS, MAX_MEASUREMENTS, SEARCH_WINDOWS, Study, Watch
from pilot_perf.target import SharedMemory, target_for
from pilot_server.running import RunningServer
from pilot_server.toolchain import PerfAnalyzer


@dataclass(frozen=True)
class Request:
    """What to sweep.

    `model_dir` None: the server is not ours, its files are not seen. `may_reload` False: only the load is swept.
    `results_dir` receives the study, unless `study_file` names it, and the chosen config.pbtxt.
    """

    model: str
    slo: Slo
    levels: Levels
    results_dir: Path
    model_dir: Path | None = None
    requests: RequestOptions = field(default_factory=RequestOptions)
    study_file: Path | None = None
    strategy: str = "quick"
    # Of the search; None: MAX_MEASUREMENTS, for the strategy grid without end.
    max_measurements: int | None = None
    may_reload: bool = True
    fresh: bool = False
    # Whether to measure what each knob brought, and which bound of the queue protects the chosen configuration.
    attribution: bool = True
    protection: bool = True
    # Whether to try the answer with arrivals that do not wait, and the intervals of a recorded trace for them.
    open_loop: bool = True
    trace: Path | None = None
    shared_memory: SharedMemory = "none"
    output_bytes: int | None = None
    # Requests/s that are to be served; None: nothing was said.
    rate_per_s: float | None = None

    def model_dir_of(self, name: str) -> Path | None:
        """The folder of this model, or of a member of this ensemble, which lies beside it."""
        return None if self.model_dir is None else self.model_dir.parent / name

    def version_dir_of(self, name: str) -> Path | None:
        folder = self.model_dir_of(name)
        return None if folder is None else model_config.latest_version_dir(folder)


@dataclass(frozen=True)
class Outcome:
    """What a study came to. `winner` None: nothing keeps the budget; `nearest` is then the closest miss.

    `verdict` is None where there was nothing to compare: the untuned configuration won, or only the load was swept.
    """

    study_file: Path
    slo: Slo
    num_measurements: int
    winner: Measurement | None
    nearest: Measurement | None
    verdict: Verdict | None
    config_file: Path | None
    # What a reader must know before believing the verdict.
    warning: str | None = None
    attribution: Attribution | None = None
    protection: Protection | None = None
    replicas: Replicas | None = None
    open_loop: OpenLoop | None = None
    # Of an ensemble, whose own configuration has no knobs: those of its members that change, by name.
    member_files: Mapping[str, Path] = field(default_factory=dict)
    # What bounds the answer at its load.
    bottleneck: Bottleneck | None = None

    @property
    def installable(self) -> Knobs | None:
        """The chosen knobs with the bound of the queue that protects them, where one does."""
        if self.protection is not None and self.protection.knobs is not None:
            return self.protection.knobs
        return self.chosen

    @property
    def chosen(self) -> Knobs | None:
        """What should serve: the tuned configuration if it is a proven gain, else the untuned one; None: neither."""
        if self.verdict is not None and self.verdict.is_a_gain:
            return self.verdict.chosen.trial.knobs
        if self.winner is None:
            return None
        return Knobs()

    @property
    def text(self) -> str:
        if self.winner is None:
            return f"nothing keeps {self.slo}"
        if self.verdict is None:
            return "the untuned configuration is the best that was found"
        return self.verdict.text


def run(
    server: RunningServer,
    analyzer: PerfAnalyzer,
    request: Request,
    *,
    watch: Watch = lambda _phase, _number, _measurement: None,
    say: Say = silent,
    restart: Callable[[], RunningServer] | None = None,
) -> Outcome:
    """Search and confirm on `server`, where `request.model` is loaded as it is installed; resumes what was interrupted.

    `restart` gives another server in the same state, for one that dies; it is called once at most.

    The server runs the untuned configuration again when this returns; one that is not ours also when this raises.

    Raises:
        PerfError, ClientError: see their trees; what was measured until then is in the study.
    """
    url, model = server.grpc_url, request.model
    try:
        installed = repository.model_config(url, model)
    except ClientError as error:
        raise ModelNotReadyError(f"model {model!r} cannot be swept: {error}") from error
    members = members_of(installed, lambda name: repository.model_config(url, name))
    space = _space(installed, members, request)
    try:
        request.results_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfError(f"{request.results_dir} cannot be made: {error.strerror}. Name another folder") from error
    requests = requests_for(installed, request.requests, request.results_dir, request.model_dir)
    conditions = _conditions(url, analyzer, request, installed, members, space, requests)
    study_file = (
        request.study_file or request.results_dir / f"study-{text_hash(repr(sorted(conditions.items())))}.sqlite"
    )
    if request.fresh:
        study_file.unlink(missing_ok=True)
    target = target_for(
        url,
        installed,
        requests,
        request.slo,
        shared_memory=request.shared_memory,
        output_bytes=request.output_bytes,
        trace_us=None if request.trace is None else tuple(read_trace(request.trace)),
    )
    bench = Bench(
        Loader(analyzer, target, installed, request.slo, server.pid, request.requests.seed), installed, members
    )
    if server.pid is None and request.may_reload:
        _require_control(bench)
    source = _source_config(request, installed)
    lifeline = Lifeline(server, bench, restart, say)
    with Store.create_or_resume(study_file, conditions, model_config.to_text(source)) as store:
        if known := len(store.rows()):
            say(f"Going on with {study_file}: {known} measurements are there")
        study = Study(
            store,
            bench.measure,
            space,
            request.slo,
            usable_cpus(),
            same_as_installed_members(members, space) if members else same_as_installed(installed, space),
            _most_measurements(request),
            STRATEGIES[request.strategy],
            revive=lifeline.revive,
            watch=watch,
        )
        try:
            winner = study.search()
            verdict = None
            if winner is not None and not winner.trial.knobs.is_untuned:
                if not store.rows("confirm"):
                    say("Measuring the untuned and the chosen configuration in turn")
                verdict = study.confirm()
            held = None
            if request.open_loop and (rate := served_within_budget(winner, verdict)) is not None:
                if not store.rows("open_loop"):
                    say("Measuring the answer in an open loop: arrivals that do not wait")
                knobs = verdict.chosen.trial.knobs if verdict is not None and verdict.is_a_gain else UNTUNED
                held = study.hold_in_open_loop(knobs, rate)
            attribution, protection = _explain(study, verdict, request, say)
        except BaseException:
            # One of ours is about to be stopped.
            if lifeline.server.pid is None and lifeline.server.is_alive():
                bench.restore()
            raise
        bench.restore()
        if len(store.rows()) == known:
            say("The study was complete: nothing was measured now (--fresh measures anew)")
        history = store.measurements("search")
        warning = None if verdict is None else drift_note(history, verdict)
        near = nearest_miss(history, request.slo)
        outcome = Outcome(
            study_file,
            request.slo,
            len(store.rows()),
            winner,
            near,
            verdict,
            None,
            warning,
            attribution,
            protection,
            open_loop=held,
            bottleneck=_bottleneck(winner, verdict, installed, members),
        )
    if request.rate_per_s is not None and (measured := served_by_one(winner, verdict, held)) is not None:
        outcome = replace(outcome, replicas=replicas_for(request.rate_per_s, measured))
    if outcome.verdict is None or outcome.installable is None:
        return outcome
    if members:
        return replace(outcome, member_files=_write_members(outcome.installable, members, request))
    tuned = apply(source, outcome.installable)
    return replace(outcome, config_file=model_config.write(tuned, request.results_dir))


def _require_control(bench: Bench) -> None:
    """Load the models of a server that is not ours as they are, which shows whether it lets them be loaded at all.

    Raises:
        PerfError: it does not.
    """
    try:
        bench.reload()
    except ModelNotReadyError as error:
        raise PerfError(
            f"the server at {bench.target.grpc_url} does not let models be loaded ({error}). Start it with "
            "--model-control-mode=explicit, or leave --allow-reload out to sweep the load alone"
        ) from error


def _write_members(knobs: Knobs, members: Members, request: Request) -> dict[str, Path]:
    """The config.pbtxt of each member of an ensemble that the answer changes, in a folder of its name."""
    files = {}
    for name, own in knobs.members:
        model_dir = request.model_dir_of(name)
        source = members[name]
        if model_dir is not None and (model_dir / model_config.CONFIG_FILE).is_file():
            source = model_config.read(model_dir)
        folder = request.results_dir / name
        folder.mkdir(exist_ok=True)
        files[name] = model_config.write(apply(source, own), folder)
    return files


def _bottleneck(
    winner: Measurement | None, verdict: Verdict | None, installed: ModelConfig, members: Members
) -> Bottleneck | None:
    measurement = last_of_answer(winner, verdict)
    if measurement is None:
        return None
    if members:
        own = dict(measurement.trial.knobs.members)
        running = {name: apply(config, own.get(name, UNTUNED)) for name, config in members.items()}
        return bottleneck_of_members(measurement, installed, running, usable_cpus())
    return bottleneck(measurement, apply(installed, measurement.trial.knobs), usable_cpus())


def _explain(
    study: Study, verdict: Verdict | None, request: Request, say: Say
) -> tuple[Attribution | None, Protection | None]:
    """The phases after the confirmation, where it has found a gain."""
    if verdict is None or not verdict.is_a_gain:
        return None, None
    attribution, protection = None, None
    if request.attribution:
        say("Measuring what each knob brought")
        attribution = study.attribute(verdict)
    # The queue of an ensemble is that of its members.
    if request.protection and not verdict.chosen.trial.knobs.members:
        say("Measuring at twice the load, without and with a bound of the queue")
        protection = study.protect(verdict)
    return attribution, protection


def _conditions(
    url: str,
    analyzer: PerfAnalyzer,
    request: Request,
    installed: ModelConfig,
    members: Members,
    space: Space,
    requests: Requests,
) -> dict[str, Any]:
    return {
        **machine(),
        **software(server_version(url), analyzer.version, is_own_server=request.model_dir is not None),
        **model_files(request.model_dir),
        **{
            f"{name}/{key}": value for name in members for key, value in model_files(request.model_dir_of(name)).items()
        },
        "model.precision": _precision(installed, space),
        "model": request.model,
        "model.config": text_hash("".join(map(model_config.to_text, (installed, *members.values())))),
        **requests.conditions,
        "seed": request.requests.seed,
        "arrivals": "Poisson" if request.trace is None else file_hash(request.trace),
        "shared_memory": request.shared_memory,
        "slo": str(request.slo),
        "strategy": request.strategy,
        "space": {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(space).items()},
        "windows_ms": [SEARCH_WINDOWS.window_ms, CONFIRM_WINDOWS.window_ms],
    }


def _precision(installed: ModelConfig, space: Space) -> str:
    """The variants that were tried, else the file that is installed: its name holds the precision."""
    return ", ".join(space.precisions) or installed.default_model_filename or "as installed"


def _space(installed: ModelConfig, members: Members, request: Request) -> Space:
    if request.may_reload:
        if members:
            return ensemble_space(installed, members, request.levels, usable_cpus(), request.version_dir_of)
        return space_for(installed, request.levels, usable_cpus(), request.version_dir_of(request.model))
    if request.levels.named:
        raise PerfError(
            f"{', '.join(request.levels.named)} change the configuration of a server that this command did not "
            "start: add --allow-reload, or leave them out to sweep the load alone"
        )
    return Space(max_concurrency=request.levels.max_concurrency)


def _most_measurements(request: Request) -> int:
    if request.max_measurements is not None:
        return request.max_measurements
    return sys.maxsize if request.strategy == "grid" else MAX_MEASUREMENTS


def _source_config(request: Request, installed: ModelConfig) -> ModelConfig:
    """What a person wrote, where it can be seen; else what the server made of it."""
    if request.model_dir is not None and (request.model_dir / model_config.CONFIG_FILE).is_file():
        return model_config.read(request.model_dir)
    return installed
