"""What `sweep`, `tune` and `report` say when they are used wrongly, and how they print a result."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilot_base.errors import PilotError
from pilot_cli import sweep_options
from pilot_cli.main import cli
from pilot_cli.sweep_outcome import outcome_json, outcome_table
from pilot_perf.alone import Alone
from pilot_perf.attribution import Attribution, Step
from pilot_perf.confirm import judge
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Trial
from pilot_perf.outcome import Outcome
from pilot_perf.overload import Attempt, Protection
from pilot_perf.queue_policy import Room
from pilot_perf.ratio import paired_ratio
from pilot_perf.replicas import replicas_for
from pilot_perf.search.strategies import STRATEGIES
from pilot_perf.side import Side
from pilot_perf.slo import parse_slo
from pilot_testing.onnx_models import install

SLO = parse_slo(["p95:50"])


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep",), "Missing argument 'MODEL'"),
        (("sweep", "m", "--instances", "1;2"), "'1;2' is not a list of whole numbers, such as 1,2,4"),
        (("sweep", "m", "--slo", "fast"), "budget 'fast' is not understood: a budget looks like p95:50ms"),
        (("tune", "m", "--slo", "p95:0"), "can never be kept"),
        (("sweep", "m", "--instances", "0,2"), "0 is below 1"),
        (("tune", "m", "--delay-us", "-1"), "-1 is below 0"),
        (("sweep", "m", "--url", "h:1", "--repository", "r"), "give one of them"),
        (("sweep", "m", "--allow-reload"), "--allow-reload is for a server at --url"),
        (("sweep", "m", "--input-data", "/no/such"), "does not exist"),
        (("sweep", "m", "--prompt-tokens", "long"), "lengths 'long' are not understood: lengths look like 128"),
        (("sweep", "m", "--trace", "/no/such"), "does not exist"),
        (("sweep", "m", "--shared-memory", "disk"), "is not one of 'none', 'system', 'cuda'"),
        (("sweep", "m", "--shared-memory", "none,none"), "names one twice"),
        (("sweep", "m", "--max-num-seqs", "0"), "0 is below 1"),
        (("tune",), "Missing argument 'SPEC|MODEL'"),
        (("tune", "m", "--max-measurements", "0"), "0 is not in the range"),
        (("report",), "Missing argument 'STUDY'"),
    ],
)
def test_wrong_use_exits_with_2_and_names_the_option(arguments: tuple[str, ...], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("report", "/no/study.sqlite"), "There is no study at /no/study.sqlite"),
        (("sweep", "m", "--url", "127.0.0.1:1"), "no Triton server at 127.0.0.1:1"),
        (("sweep", "m", "--repository", "/no/models"), "no model repository at /no/models"),
        (("sweep", "m", "--repository", "."), "There is no model 'm' in "),
        (("sweep", "../m", "--repository", "."), "There is no model '../m' in "),
    ],
)
def test_what_cannot_be_done_is_an_error_in_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert isinstance(result.exception, PilotError), result.output
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--input-data", "rows.json"), r"rows.json, row 1: input 'x' has shape [2], the model takes x FP32 [4]"),
        (("--input-data", "prompts.jsonl"), "prompts.jsonl, line 1: not JSON"),
        (("--trace", "trace.txt"), "the trace trace.txt must have one whole number of microseconds per line"),
        (("--tokenizer", "."), "tokenizer.json cannot be read as a tokenizer"),
    ],
)
def test_a_file_that_cannot_be_used_costs_no_start_of_a_server(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pilot_cli.own_server.starter", lambda *_: pytest.fail("a server was started"))
    (tmp_path / "models" / "m").mkdir(parents=True)
    config = 'name: "m" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }'
    (tmp_path / "models" / "m" / "config.pbtxt").write_text(config)
    (tmp_path / "rows.json").write_text('{"data": [{"x": [1.0, 2.0]}]}')
    (tmp_path / "prompts.jsonl").write_text("Why?")
    (tmp_path / "trace.txt").write_text("fast")
    result = invoke("sweep", "m", "--repository", "models", *options)
    assert isinstance(result.exception, PilotError), result.output
    assert message in str(result.exception)
    assert not (tmp_path / "build").exists()


@pytest.mark.triton
def test_a_model_that_the_server_refuses_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install(tmp_path / "models", "corrupt", b"no graph", config='backend: "onnxruntime"\n')
    result = invoke("sweep", "corrupt", "--repository", "models")
    assert isinstance(result.exception, PilotError), result.output
    assert "'corrupt' cannot be loaded" in str(result.exception)
    assert "export or copy it again" in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not (tmp_path / "build").exists()


def side(knobs: Knobs, load: int, rates: list[float], p95_ms: float) -> Side:
    trial = Trial(knobs, load)
    rounds = [Measurement(trial, "measured", Figures(r, {"avg": 1.0, "p95": p95_ms}, 500, 5.0)) for r in rates]
    return Side(trial, tuple(rounds))


def confirmed() -> Outcome:
    verdict = judge(
        side(UNTUNED, 2, [100.0, 101.0, 99.0], 40.0), side(Knobs("int8"), 8, [300.0, 306.0, 294.0], 45.0), SLO
    )
    winner = verdict.chosen.rounds[0]
    return Outcome(Path("s.sqlite"), SLO, 20, winner, winner, verdict, Path("config.pbtxt"))


def test_the_table_sets_both_sides_beside_each_other() -> None:
    assert outcome_table(confirmed()).splitlines() == [
        "               untuned        chosen",
        "configuration  as installed   int8",
        "in flight      2              8",
        "throughput     100/s          300/s",
        "p95            40.0 ms        45.0 ms",
        "kept p95:50ms  3 of 3 rounds  3 of 3 rounds",
        "Ratio chosen / untuned: 3.00 [2.93, 3.08] (mean of the log ratios of interleaved pairs, Student's t interval "
        "at 95%; 3 pairs)",
        "Conclusion: the chosen configuration is faster within the budget",
    ]


def test_a_language_model_has_rows_for_its_tokens() -> None:
    of_tokens = {"output_tokens_per_s": 640.4, "output_tokens_per_s_per_user": 48.0, "goodput_per_s": 3.75}
    outcome = confirmed()
    assert outcome.verdict is not None

    def with_tokens(side: Side) -> Side:
        rounds = [replace(m, figures=replace(m.figures, **of_tokens)) for m in side.rounds if m.figures]
        return replace(side, rounds=tuple(rounds))

    verdict = replace(
        outcome.verdict, untuned=with_tokens(outcome.verdict.untuned), chosen=with_tokens(outcome.verdict.chosen)
    )
    lines = outcome_table(replace(outcome, verdict=verdict)).splitlines()
    assert lines[4:7] == [
        "output         640 tokens/s   640 tokens/s",
        "for one user   48 tokens/s    48 tokens/s",
        "goodput        3.8/s          3.8/s",
    ]


def test_the_json_has_the_same_figures() -> None:
    result = outcome_json(confirmed())
    assert result["tuned"]["throughput_per_s"] == 300.0
    assert result["untuned"]["measures"] == {"p95": 40.0}
    assert result["ratio"]["pairs"] == 3
    assert result["chosen_knobs"]["precision"] == "int8"


def test_nothing_within_the_budget_is_said_with_the_nearest_miss() -> None:
    near = side(UNTUNED, 1, [10.0], 70.0).rounds[0]
    outcome = Outcome(Path("s.sqlite"), SLO, 3, None, near, None, None)
    assert outcome_table(outcome) == "Nothing keeps p95:50ms.\nNearest: untuned; 1 in flight: p95 70.0 ms"
    result = outcome_json(outcome)
    assert result["chosen_knobs"] is result["winner"] is None
    assert (result["nearest"]["concurrency"], result["nearest"]["measures"]) == (1, {"p95": 70.0})


def test_an_answer_that_was_compared_with_nothing_is_told_by_its_confirming_rounds() -> None:
    """The load alone was swept: what counts is what was measured again, and not the search's one short window."""
    winner = side(UNTUNED, 4, [110.0], 30.0).rounds[0]
    rounds = side(UNTUNED, 4, [100.0, 101.0, 99.0], 40.0)
    alone = Alone(Side(rounds.trial, (), rounds.rounds), True, 0)
    outcome = Outcome(Path("s.sqlite"), SLO, 8, winner, winner, None, None, alone=alone)
    assert outcome_table(outcome).splitlines() == [
        "untuned: 100/s at 4 in flight, p95 40.0 ms, within the budget in 3 of 3 rounds",
        "Conclusion: the untuned configuration is the best that was found; it surely keeps the budget at 4 in flight "
        "(3 rounds)",
    ]
    result = outcome_json(outcome)
    assert (result["winner"]["throughput_per_s"], result["nearest"]) == (110.0, None)
    assert (result["alone"]["throughput_per_s"], result["alone"]["keeps_budget"]) == (100.0, True)
    assert (result["alone"]["rounds"], result["untuned"]) == (3, None)


def explained() -> Outcome:
    """A finished outcome with two steps, a bounded queue and a rate to serve."""
    outcome = confirmed()
    assert outcome.verdict is not None
    between = side(Knobs("int8"), 4, [150.0, 152.0, 148.0], 45.0)
    steps = (
        Step("precision int8", outcome.verdict.untuned, between, paired_ratio([150, 152, 148], [100, 101, 99])),
        Step("max batch 8", between, outcome.verdict.chosen, paired_ratio([152, 150], [150, 152])),
    )
    bounded = Knobs("int8", max_queue_size=12)
    figures = Figures(280.0, {"avg": 40.0, "p95": 52.0}, 900, 5.0, refused_rate=0.53, refused_ms={"p95": 2.0})
    attempt = Attempt("bound on the size", Trial(bounded, 2000, rate_per_s=600.0), figures, "")
    protection = Protection(Room(300.0, 50.0, 8.0), (attempt,), bounded)
    return replace(outcome, attribution=Attribution(steps), protection=protection, replicas=replicas_for(1000.0, 300.0))


def test_the_table_says_what_each_knob_brought_what_an_overload_does_and_how_many_replicas_are_needed() -> None:
    assert outcome_table(explained()).splitlines()[8:] == [
        "",
        "What each knob brought (throughput within the budget):",
        "  precision int8  x 1.50 [1.49, 1.51]  150/s  faster",
        "  max batch 8     x 1.00 [0.85, 1.18]  300/s  no difference found",
        "",
        "Overload: at 2 x the tuned rate accepted requests keep 1.2 x the budget, 53% are refused, 95% of those within "
        "2.0 ms",
        "",
        "Replicas: 5 replicas for 1000/s: each carries 200/s, 67% of the 300/s measured (30% are kept free)",
    ]


def test_the_json_carries_the_steps_the_bound_and_the_replicas() -> None:
    outcome = explained()
    result = json.loads(json.dumps(outcome_json(outcome)))
    assert [step["change"] for step in result["attribution"]] == ["precision int8", "max batch 8"]
    assert result["attribution"][1]["result"] == "no difference found"
    assert result["overload"]["knobs"]["max_queue_size"] == 12
    assert result["overload"]["attempts"][0]["refused_share"] == 0.53
    assert result["overload"]["attempts"][0]["refused_ms"] == {"p95": 2.0}
    assert result["replicas"]["count"] == 5
    assert outcome.installable == Knobs("int8", max_queue_size=12)
    assert confirmed().installable == Knobs("int8")
    assert outcome_json(confirmed())["attribution"] is outcome_json(confirmed())["overload"] is None


def test_the_strategies_of_the_command_are_those_that_there_are() -> None:
    assert set(sweep_options.STRATEGIES) == set(STRATEGIES)
