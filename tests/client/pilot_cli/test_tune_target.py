from pathlib import Path

import pytest

from pilot_base.errors import PilotError
from pilot_cli.tune_target import UNTUNED_FILE, find_target, install_tuned, restore_untuned

UNTUNED = '# mine\nname: "m"\nmax_batch_size: 1\n'
TUNED = 'name: "m"\nmax_batch_size: 8\n'


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(UNTUNED)
    return folder


def config(model_dir: Path) -> str:
    return (model_dir / "config.pbtxt").read_text()


def test_the_untuned_configuration_stays_beside_and_comes_back_as_it_was(model_dir: Path) -> None:
    install_tuned(model_dir, TUNED)
    assert config(model_dir).endswith(TUNED)
    assert (model_dir / UNTUNED_FILE).read_text() == UNTUNED
    restore_untuned(model_dir)
    assert config(model_dir) == UNTUNED


def test_tuning_again_starts_from_the_first_untuned_configuration(model_dir: Path) -> None:
    for _ in range(2):
        restore_untuned(model_dir)
        install_tuned(model_dir, TUNED)
    assert (model_dir / UNTUNED_FILE).read_text() == UNTUNED


def test_a_tuned_configuration_that_was_edited_since_is_the_person_s_own(model_dir: Path) -> None:
    install_tuned(model_dir, TUNED)
    edited = config(model_dir).replace("8", "16")
    (model_dir / "config.pbtxt").write_text(edited)
    restore_untuned(model_dir)
    assert config(model_dir) == edited


def test_a_model_without_an_earlier_tune_is_left_alone(model_dir: Path) -> None:
    restore_untuned(model_dir)
    assert config(model_dir) == UNTUNED
    assert not (model_dir / UNTUNED_FILE).exists()


def test_a_model_is_tuned_in_a_copy(model_dir: Path, tmp_path: Path) -> None:
    target = find_target("m", model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)
    assert (target.model, target.spec) == ("m", None)
    install_tuned(target.model_dir, TUNED)
    assert config(model_dir) == UNTUNED


@pytest.mark.parametrize("name", ["", ".", "..", "../models/m"])
def test_a_path_is_no_model(model_dir: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(PilotError, match=r"nor a model in .*there: m\)"):
        find_target(name, model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)


def test_a_name_that_is_nothing_lists_what_there_is(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(PilotError, match=r"'n' is neither a sample \(minilm.*nor a model in .*\(there: m\)"):
        find_target("n", model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)
