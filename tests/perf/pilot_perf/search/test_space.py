import pytest

from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs
from pilot_perf.search.space import Space

SPACE = Space(("fp32", "int8"), (1, 2), (1, 2), (1, 4, 8), (0, 1000))


def test_a_delay_without_batches_is_no_configuration_of_its_own() -> None:
    configurations = SPACE.configurations()
    assert len(configurations) == len(set(configurations)) == 2 * 4 * (1 + 2 * 2)


def test_neighbours_differ_in_one_dimension_and_are_in_the_space() -> None:
    for here in SPACE.configurations():
        neighbours = SPACE.neighbours(here)
        assert here not in neighbours
        assert set(neighbours) <= set(SPACE.configurations())
        assert len(neighbours) == len(set(neighbours))


def test_every_configuration_is_reached_by_steps_to_neighbours() -> None:
    seen, edge = {SPACE.start(2)}, [SPACE.start(2)]
    while edge:
        edge = [near for here in edge for near in SPACE.neighbours(here) if near not in seen and not seen.add(near)]
    assert seen == set(SPACE.configurations())


def test_an_empty_space_is_the_installed_configuration_alone() -> None:
    assert Space().configurations() == [Knobs()]
    assert Space().neighbours(Knobs()) == []


def test_levels_below_the_least_are_refused() -> None:
    with pytest.raises(KnobError, match="delay-us must be at least 0, not -1"):
        Space(queue_delays_us=(-1, 0))
