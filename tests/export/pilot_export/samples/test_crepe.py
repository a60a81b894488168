"""The sample for sound: right on tones of known pitch, and served under its committed configuration."""

import shutil
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pilot_base.errors import PilotError
from pilot_cli.main import cli
from pilot_export.pipeline import export_model
from pilot_export.samples import crepe, tones
from pilot_export.spec import ExportSpec, load_spec
from pilot_export.verify import torch_runner
from pilot_server import model_repository_dir
from pilot_server.running import RunningServer


@pytest.fixture(scope="module")
def spec() -> ExportSpec:
    return crepe.spec(num_judged_rows=300)


def write_wav(path: Path, sound: np.ndarray, sample_rate: int = crepe.SAMPLE_RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, sample_rate, 0, "NONE", "NONE"))
        file.writeframes((sound * 32000).astype("<i2").tobytes())
    return path


def test_the_module_hears_the_pitch_of_nearly_every_tone(spec: ExportSpec) -> None:
    assert spec.task is not None
    run = torch_runner(spec, crepe.pitch_model())
    is_right = spec.task.fit([])([run(batch) for batch in spec.evaluation])
    assert is_right.mean() > 0.98


def test_a_recording_is_answered_with_its_pitch_and_silence_with_doubt(tmp_path: Path, spec: ExportSpec) -> None:
    run = torch_runner(spec, crepe.pitch_model())
    recording = write_wav(tmp_path / "a3.wav", tones.pure_tone(220.0, 16_000, crepe.SAMPLE_RATE))
    silence = write_wav(tmp_path / "silence.wav", np.zeros(16_000))
    heard, high, nothing = crepe.answer(run, [str(recording), "880", str(silence)])
    assert heard["pitch_hz"] == pytest.approx(220.0, rel=0.01)
    assert (heard["note"].split()[0], high["note"].split()[0]) == ("A3", "A5")
    assert min(heard["confidence"], high["confidence"]) > 0.8 > 0.2 > nothing["confidence"]


@pytest.mark.parametrize(
    ("word", "message"),
    [("nosuch.wav", "no .wav file"), ("9000", "between 0 and 8000 Hz"), ("-3", "between 0 and 8000 Hz")],
)
def test_what_is_no_sound_is_refused(word: str, message: str) -> None:
    with pytest.raises(PilotError, match=message):
        crepe.answer(dict, [word])


def test_a_recording_of_another_rate_or_too_short_names_the_mend(tmp_path: Path) -> None:
    with pytest.raises(PilotError, match="convert it to 16 bits at 16000 Hz"):
        crepe.answer(dict, [str(write_wav(tmp_path / "fast.wav", np.zeros(9000), 44_100))])
    with pytest.raises(PilotError, match="shorter than one frame"):
        crepe.answer(dict, [str(write_wav(tmp_path / "short.wav", np.zeros(1000)))])


@pytest.mark.parametrize(("hz", "note"), [(440.0, "A4 +0"), (261.63, "C4 +0"), (446.0, "A4 +23"), (27.5, "A0 +0")])
def test_notes_are_named_with_their_distance(hz: float, note: str) -> None:
    assert crepe.note(hz) == note


@pytest.mark.triton
def test_exported_under_the_committed_configuration_it_answers(
    tmp_path: Path, spec: ExportSpec, start_server: Callable[..., RunningServer]
) -> None:
    shutil.copytree(model_repository_dir() / "crepe", tmp_path / "models" / "crepe")
    report = export_model(spec, tmp_path / "models", build_dir=tmp_path / "build", precisions=(), window_s=0.01)
    assert report.installed == ("fp32",)
    server = start_server(tmp_path / "models")
    result = CliRunner().invoke(cli, ["infer", "crepe", "440", "--url", server.grpc_url])
    assert result.output.startswith("440: 440."), result.output
    assert "Hz, A4" in result.output


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_export_is_right_and_static_int8_is_judged(tmp_path: Path) -> None:
    report = export_model(load_spec("crepe"), tmp_path / "models", build_dir=tmp_path / "build")
    fp32, int8 = report.variants
    assert fp32.quality is not None
    assert fp32.quality.task is not None
    assert fp32.quality.task.original > 0.98
    assert int8.status == "installed" or int8.reasons
