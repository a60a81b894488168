"""Sounds whose pitch is known because they are made here: harmonics of a random fundamental, with noise."""

import wave
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_base.errors import PilotError

MIN_HZ, MAX_HZ = 50.0, 1200.0
_MAX_HARMONICS = 8


def tones(count: int, num_samples: int, sample_rate: int, seed: int) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """[count, num_samples] of sound, and the fundamental of each in Hz [count].

    Like voices and instruments: up to 8 harmonics that grow weaker, at random phases, and noise 10 to 40 dB below.
    """
    random = np.random.default_rng(seed)
    pitch_hz = np.exp(random.uniform(np.log(MIN_HZ), np.log(MAX_HZ), count))
    time_s = np.arange(num_samples) / sample_rate
    rows = [_tone(hz, time_s, sample_rate, random) for hz in pitch_hz]
    return np.stack(rows).astype(np.float32), pitch_hz


def pure_tone(hz: float, num_samples: int, sample_rate: int) -> NDArray[np.float32]:
    return np.asarray(np.sin(2 * np.pi * hz * np.arange(num_samples) / sample_rate), dtype=np.float32)


def read_wav(path: Path, sample_rate: int) -> NDArray[np.float32]:
    """The samples of a .wav file [samples], -1 to 1, channels averaged.

    Raises:
        PilotError: no .wav file of 16 bits at `sample_rate`.
    """
    try:
        with wave.open(str(path)) as file:
            found = (file.getsampwidth(), file.getframerate())
            data = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").reshape(-1, file.getnchannels())
    except (OSError, EOFError, ValueError, wave.Error) as error:
        raise PilotError(f"{path} is no .wav file that can be read: {error}") from error
    if found != (2, sample_rate):
        raise PilotError(f"{path} has {8 * found[0]} bits at {found[1]} Hz: convert it to 16 bits at {sample_rate} Hz")
    return np.asarray(data.mean(axis=1) / 32768.0, dtype=np.float32)


def _tone(hz: float, time_s: NDArray[Any], sample_rate: int, random: np.random.Generator) -> NDArray[Any]:
    num_harmonics = min(int(random.integers(1, _MAX_HARMONICS + 1)), int(0.45 * sample_rate / hz))
    fall = random.uniform(0.3, 0.9)
    sound = sum(
        fall**k * np.sin(2 * np.pi * (k + 1) * hz * time_s + random.uniform(0, 2 * np.pi)) for k in range(num_harmonics)
    )
    noise = random.normal(0.0, 10 ** (-random.uniform(10, 40) / 20), len(time_s))
    return np.asarray(sound / np.std(sound) + noise) * random.uniform(0.05, 0.5)
