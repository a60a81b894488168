from pathlib import Path

import pytest

from pilot_client.model_config import parse
from pilot_perf.bottleneck import bottleneck_of_members
from pilot_perf.default_space import Levels
from pilot_perf.ensemble import ensemble_space, members_of, num_steps, same_as_installed_members
from pilot_perf.errors import KnobError
from pilot_perf.knobs import UNTUNED, Knobs
from pilot_perf.measures import Figures, Measurement, Stages, Trial
from pilot_perf.search.space import Space

PIPELINE = parse(
    """
    name: "pipeline" max_batch_size: 4
    ensemble_scheduling {
      step { model_name: "words" } step { model_name: "net" } step { model_name: "words" } step { model_name: "inner" }
    }
    """
)
CONFIGS = {
    "words": parse('name: "words" backend: "python" max_batch_size: 16 instance_group { count: 1 }'),
    "net": parse('name: "net" backend: "onnxruntime" max_batch_size: 8 instance_group { count: 1 }'),
    "inner": parse('name: "inner" ensemble_scheduling { step { model_name: "net" } step { model_name: "last" } }'),
    "last": parse('name: "last" backend: "python" instance_group { count: 1 }'),
}
MEMBERS = members_of(PIPELINE, CONFIGS.__getitem__)


def space(levels: Levels) -> Space:
    return ensemble_space(PIPELINE, MEMBERS, levels, 2, lambda _name: None)


def test_members_of_inner_ensembles_are_members_too_each_once() -> None:
    assert list(MEMBERS) == ["words", "net", "last"]
    assert (num_steps(PIPELINE, "words"), num_steps(PIPELINE, "net")) == (2, 1)
    assert members_of(CONFIGS["net"], CONFIGS.__getitem__) == {}


def test_each_member_has_the_knobs_that_it_can_take() -> None:
    spaces = dict(space(Levels()).members)
    assert spaces["net"].intra_op_threads == (1, 2)
    assert spaces["words"].intra_op_threads == ()
    # The ensemble takes batches of 4: a member that takes less would be refused.
    assert spaces["net"].max_batches == (8, 32)
    assert spaces["words"].max_batches == (8, 16)
    assert (spaces["last"].max_batches, spaces["last"].instances) == ((), (1, 2))


def test_a_batch_below_the_ensemble_s_own_is_refused() -> None:
    with pytest.raises(
        KnobError, match=r"takes batches of up to 4, and so must its members: leave 1, 2 out of --max-b"
    ):
        space(Levels(max_batches=(1, 2, 8)))


def test_every_combination_is_a_configuration_and_named_by_its_members() -> None:
    levels = Levels(instances=(1, 2), intra_op_threads=(1,), max_batches=(8,), queue_delays_us=(0,))
    found = space(levels).configurations()
    assert len(found) == 2 * 2 * 2
    assert found[0].members == (
        ("last", Knobs(instances=1)),
        ("net", Knobs(instances=1, intra_op_threads=1, max_batch=8, queue_delay_us=0)),
        ("words", Knobs(instances=1, max_batch=8, queue_delay_us=0)),
    )
    assert found[0].instances is None


def test_levels_that_no_member_can_take_are_refused() -> None:
    with pytest.raises(KnobError, match=r"none of its members \(words, net, last\) can take --block-size"):
        space(Levels(block_sizes=(16,)))
    with pytest.raises(KnobError, match="precision"):
        ensemble_space(PIPELINE, MEMBERS, Levels(precisions=("int4",)), 2, lambda _name: Path("/none"))


def test_the_configuration_that_changes_no_member_is_found() -> None:
    members = {"last": CONFIGS["last"]}
    one = Space(members=(("last", Space(instances=(1, 2))),))
    assert same_as_installed_members(members, one) == Knobs(members=(("last", Knobs(instances=1)),))
    assert same_as_installed_members(members, Space(members=(("last", Space(instances=(2,))),))) is None


def test_what_bounds_an_ensemble_is_its_busiest_member() -> None:
    """50/s: `words` runs twice a request, 9 ms each, one row at a time: busy 90%; `net` 6 ms: 30%."""
    stages = {"words": Stages(5.0, 0.0, 9.0, 0.0, 1.0), "net": Stages(1.0, 0.0, 6.0, 0.0, 1.0)}
    figures = Figures(50.0, {"avg": 40.0}, 500, 10.0, members=stages)
    measurement = Measurement(Trial(UNTUNED, 2), "measured", figures)
    members = {name: CONFIGS[name] for name in stages}
    found = bottleneck_of_members(measurement, PIPELINE, members, 4)
    assert found is not None
    assert found.bound == "compute"
    assert "Its busiest member is words: the instance is busy 90% of the time" in found.evidence
