"""Puts a study together from a running server, a model and what the user asked for, and runs it to its outcome."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_base.cpus import usable_cpus
from pilot_base.progress import Say, silent
from pilot_client import model_config, repository
from pilot_client.errors import ClientError, ModelNotReadyError
from pilot_perf.attribution import Attribution
from pilot_perf.bench import Bench
from pilot_perf.bottleneck import bottleneck_as_run, last_of_answer
from pilot_perf.conditions import text_hash
from pilot_perf.config_override import apply, with_backend
from pilot_perf.confirm import Verdict, drift_note
from pilot_perf.default_space import same_as_installed, space_for
from pilot_perf.ensemble import Members, ensemble_space, members_of, same_as_installed_members
from pilot_perf.errors import PerfError
from pilot_perf.knobs import Knobs
from pilot_perf.lifeline import Lifeline
from pilot_perf.loading import Loader
from pilot_perf.outcome import Outcome
from pilot_perf.overload import Protection
from pilot_perf.proof import is_a_comparison
from pilot_perf.replicas import replicas_for, served_by_one
from pilot_perf.requests import requests_for
from pilot_perf.schedule import read_trace
from pilot_perf.search.best import nearest_miss
from pilot_perf.search.space import Space
from pilot_perf.search.strategies import STRATEGIES
from pilot_perf.store import Store
from pilot_perf.study import MAX_MEASUREMENTS, Study, Watch
from pilot_perf.study_conditions import study_conditions
from pilot_perf.sweep_request import Request
from pilot_perf.target import target_for
from pilot_server.running import RunningServer
from pilot_server.toolchain import PerfAnalyzer


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
    conditions = study_conditions(url, analyzer, request, installed, members, space, requests)
    study_file = (
        request.study_file or request.results_dir / f"study-{text_hash(repr(sorted(conditions.items())))}.sqlite"
    )
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
    source = _source_config(request.model_dir, installed)
    lifeline = Lifeline(server, bench, restart, say)
    member_sources = {name: _source_config(request.model_dir_of(name), config) for name, config in members.items()}
    member_texts = {name: model_config.to_text(config) for name, config in member_sources.items()}
    installed_texts = {name: model_config.to_text(config) for name, config in {model: installed, **members}.items()}
    untuned_text = model_config.to_text(source)
    with Store.create_or_resume(
        study_file, conditions, untuned_text, member_texts, installed_texts, fresh=request.fresh
    ) as store:
        if known := len(store.rows()):
            say(f"Going on with {study_file}: {known} measurements are there")
        study = Study(
            store,
            bench.measure,
            space,
            request.slo,
            usable_cpus(),
            same_as_installed_members(members, space)
            if members
            else same_as_installed(installed, space, request.version_dir_of(model)),
            _most_measurements(request),
            STRATEGIES[request.strategy],
            revive=lifeline.revive,
            watch=watch,
        )
        try:
            winner = study.search()
            if winner is not None and not store.rows("confirm"):
                is_comparable = is_a_comparison(winner, store.measurements("search"), request.slo)
                what = "the untuned and the chosen configuration in turn" if is_comparable else "the answer again"
                say(f"Measuring {what}, in longer windows")
            proof = study.prove()
            held = None
            if request.open_loop and proof.serving is not None and proof.serving.throughput_per_s is not None:
                if not store.rows("open_loop"):
                    say("Measuring the answer in an open loop: arrivals that do not wait")
                held = study.hold_in_open_loop(proof.serving.trial.knobs, proof.serving.throughput_per_s)
            attribution, protection = _explain(study, proof.verdict, request, say)
        except BaseException:
            # One of ours is about to be stopped.
            if lifeline.server.pid is None and lifeline.server.is_alive():
                bench.restore()
            raise
        bench.restore()
        if len(store.rows()) == known:
            say("The study was complete: nothing was measured now (--fresh measures anew)")
        history = store.measurements("search")
        warning = None if proof.verdict is None else drift_note(history, proof.verdict)
        near = nearest_miss(history, request.slo)
        answer = last_of_answer(winner, proof)
        outcome = Outcome(
            study_file,
            request.slo,
            len(store.rows()),
            winner,
            near,
            proof.verdict,
            None,
            warning,
            attribution,
            protection,
            alone=proof.alone,
            open_loop=held,
            bottleneck=None if answer is None else bottleneck_as_run(answer, installed, members, usable_cpus()),
        )
    if request.rate_per_s is not None:
        measured = served_by_one(proof, held)
        if measured is None:
            say(f"How many replicas {request.rate_per_s:g}/s need is not known: nothing has surely kept the budget")
        else:
            outcome = replace(outcome, replicas=replicas_for(request.rate_per_s, measured))
    if outcome.verdict is None or outcome.installable is None:
        return outcome
    if members:
        return replace(outcome, member_files=_write_members(outcome.installable, member_sources, request.results_dir))
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


def _write_members(knobs: Knobs, sources: Members, results_dir: Path) -> dict[str, Path]:
    """The config.pbtxt of each member of an ensemble that the answer changes, in a folder of its name."""
    files = {}
    for name, own in knobs.members:
        folder = results_dir / name
        folder.mkdir(exist_ok=True)
        files[name] = model_config.write(apply(sources[name], own), folder)
    return files


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


def _source_config(model_dir: Path | None, installed: ModelConfig) -> ModelConfig:
    """What a person wrote, where it can be seen, with its backend; else what the server made of it."""
    if model_dir is not None and (model_dir / model_config.CONFIG_FILE).is_file():
        return with_backend(model_config.read(model_dir), installed)
    return installed
