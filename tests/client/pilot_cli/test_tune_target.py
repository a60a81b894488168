from pathlib import Path

import pytest

from pilot_base.errors import PilotError
from pilot_cli.tune_target import UNTUNED_FILE, find_target, install_tuned, put_back, restore_untuned

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
    restore_untuned([model_dir])
    assert config(model_dir) == UNTUNED


def test_tuning_again_starts_from_the_first_untuned_configuration(model_dir: Path) -> None:
    for _ in range(2):
        restore_untuned([model_dir])
        install_tuned(model_dir, TUNED)
    assert (model_dir / UNTUNED_FILE).read_text() == UNTUNED


def test_a_tuned_configuration_that_was_edited_since_is_the_person_s_own(model_dir: Path) -> None:
    install_tuned(model_dir, TUNED)
    edited = config(model_dir).replace("8", "16")
    (model_dir / "config.pbtxt").write_text(edited)
    restore_untuned([model_dir])
    assert config(model_dir) == edited


def test_a_model_without_an_earlier_tune_is_left_alone(model_dir: Path) -> None:
    restore_untuned([model_dir])
    assert config(model_dir) == UNTUNED
    assert not (model_dir / UNTUNED_FILE).exists()


def test_what_an_earlier_tune_chose_comes_back_where_a_later_one_has_no_answer(model_dir: Path) -> None:
    install_tuned(model_dir, TUNED)
    chosen = config(model_dir)
    replaced = restore_untuned([model_dir])
    put_back(replaced)
    assert config(model_dir) == chosen
    # But not over what has been made meanwhile.
    replaced = restore_untuned([model_dir])
    (model_dir / "config.pbtxt").write_text(UNTUNED + "# exported anew\n")
    put_back(replaced)
    assert config(model_dir).endswith("# exported anew\n")


def test_what_an_earlier_tune_chose_comes_back_where_the_export_fails(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_spec.py").write_text(SPEC.replace("FACTOR", "1.5"))
    target = find_target("my_spec.py", model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)
    install_tuned(target.model_dir, TUNED)
    chosen = config(target.model_dir)
    (tmp_path / "my_spec.py").write_text(SPEC.replace("FACTOR * super", "'no such type' + super"))
    with pytest.raises(TypeError):
        find_target("my_spec.py", model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)
    assert config(target.model_dir) == chosen


def test_a_model_is_tuned_in_a_copy(model_dir: Path, tmp_path: Path) -> None:
    target = find_target("m", model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)
    assert (target.model, target.spec) == ("m", None)
    install_tuned(target.model_dir, TUNED)
    assert config(model_dir) == UNTUNED


SPEC = """\
import torch
from pilot_testing.specs import Doubler, doubler_spec

class Edited(Doubler):
    def forward(self, x):
        return FACTOR * super().forward(x)

def spec():
    return doubler_spec(Edited, precisions=())
"""


def test_an_export_is_made_anew_when_its_module_computes_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    said: list[str] = []
    for factor in ("1.5", "1.5", "12.5"):  # another length: two files of one length and second are one to Python
        (tmp_path / "my_spec.py").write_text(SPEC.replace("FACTOR", factor))
        target = find_target("my_spec.py", tmp_path / "models", tmp_path / "build", fresh=False, say=said.append)
        said.append(f"version {max(path.name for path in target.model_dir.glob('[0-9]'))}")
    answers = [line for line in said if "already" in line or line.startswith("version")]
    held = f"{target.model_dir} holds this export already (--fresh makes it anew)"
    assert answers == ["version 1", held, "version 1", "version 2"]
    # What else the spec asks for counts as well.
    with_more = SPEC.replace("FACTOR", "12.5").replace("precisions=()", "precisions=(), max_batch_size=4")
    (tmp_path / "my_spec.py").write_text(with_more)
    find_target("my_spec.py", tmp_path / "models", tmp_path / "build", fresh=False, say=said.append)
    assert [line for line in said if "already" in line] == [held]


@pytest.mark.parametrize("name", ["", ".", "..", "../models/m"])
def test_a_path_is_no_model(model_dir: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(PilotError, match=r"nor a model in .*there: m\)"):
        find_target(name, model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)


def test_a_name_that_is_nothing_lists_what_there_is(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(PilotError, match=r"'n' is neither a sample \(minilm.*nor a model in .*\(there: m\)"):
        find_target("n", model_dir.parent, tmp_path / "build", fresh=False, say=lambda _: None)
