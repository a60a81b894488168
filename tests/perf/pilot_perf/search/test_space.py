import pytest

from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs
from pilot_perf.search.space import MOST_LISTED, Space

SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 4, 8), (0, 1000))


def test_a_delay_without_batches_is_no_configuration_of_its_own() -> None:
    configurations = SPACE.configurations()
    assert len(configurations) == len(set(configurations)) == 2 * 4 * (1 + 2 * 2)


def test_neighbours_are_one_step_away_and_in_the_space() -> None:
    for here in SPACE.configurations():
        neighbours = SPACE.neighbours(here)
        assert here not in neighbours
        assert set(neighbours) <= set(SPACE.configurations())
        assert len(neighbours) == len(set(neighbours))
    steps = SPACE.neighbours(Knobs("fp32", 1, 2, 4, 0))
    assert Knobs("fp32", 1, 2, 4, 1000) in steps
    assert Knobs("fp32", 1, 2, 8, 0) in steps
    # Threads for instances.
    assert Knobs("fp32", 2, 1, 4, 0) in steps
    assert Knobs("int8", 1, 2, 8, 0) not in steps


def test_every_configuration_is_reached_by_steps_to_neighbours() -> None:
    start = SPACE.configurations()[0]
    seen, edge = {start}, [start]
    while edge:
        edge = [near for here in edge for near in SPACE.neighbours(here) if near not in seen and not seen.add(near)]
    assert seen == set(SPACE.configurations())


def test_ways_to_pass_tensors_stand_beside_the_studys_own() -> None:
    space = Space(instances=(1, 2), shared_memories=("system",))
    plain, shared = Knobs(instances=1), Knobs(instances=1, shared_memory="system")
    assert {plain, shared} < set(space.configurations())
    assert shared in space.neighbours(plain)
    assert plain in space.neighbours(shared)


def test_the_neighbours_of_an_ensembles_configuration_change_one_member() -> None:
    space = Space(members=(("quick", Space(instances=(1, 2))), ("slow", Space(instances=(1, 2, 4)))))
    here = Knobs(members=(("quick", Knobs(instances=1)), ("slow", Knobs(instances=2))))
    changed = [dict(near.members) for near in space.neighbours(here)]
    assert [(own["quick"].instances, own["slow"].instances) for own in changed] == [(2, 2), (1, 4), (1, 1)]
    assert set(space.neighbours(here)) <= set(space.configurations())


def test_of_an_ensemble_with_millions_of_configurations_a_part_is_listed() -> None:
    """5 members with 108 configurations each: 15 thousand million."""
    member = Space(("fp32", "int8"), (1, 2, 4), (1, 2, 4), (1, 8, 32), (0, 1000))
    space = Space(members=tuple((f"member{n}", member) for n in range(5)))
    configurations = space.configurations()
    assert configurations == space.configurations()
    assert len(configurations) == len(set(configurations)) <= MOST_LISTED
    assert all(map(space.has, configurations))
    num_moved = [len(knobs.members) for knobs in configurations]
    assert num_moved.count(1) == 5 * len(member.configurations())
    assert num_moved.count(2) > 500
    assert num_moved.count(5) > 500


def test_a_configuration_of_an_ensemble_belongs_to_the_space_though_it_is_not_listed() -> None:
    space = Space(members=(("quick", Space(instances=(1, 2))), ("slow", Space(instances=(1, 2, 4)))))
    assert space.has(Knobs(members=(("quick", Knobs(instances=2)),)))
    assert not space.has(Knobs(members=(("quick", Knobs(instances=4)),)))
    assert not space.has(Knobs(members=(("other", Knobs(instances=1)),)))


def test_an_empty_space_is_the_installed_configuration_alone() -> None:
    assert Space().configurations() == [Knobs()]
    assert Space().neighbours(Knobs()) == []


def test_levels_below_the_least_are_refused() -> None:
    with pytest.raises(KnobError, match="delay-us must be at least 0, not -1"):
        Space(queue_delays_us=(-1, 0))
