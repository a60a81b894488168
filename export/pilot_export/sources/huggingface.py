"""A Hugging Face folder: an encoder of transformers, its task read from config.json.

    config.architectures            task                   output
    ...Model                        embeddings             sentence_embedding [rows, width], see pooling.py
    ...ForSequenceClassification    classification         logits [rows, labels]
    ...ForTokenClassification       token classification   logits [rows, tokens, labels], 0 where the mask is 0

Judged on texts: those of --data (one a line), else rated English sentences out of a package.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot_export.errors import SpecError
from pilot_export.samples.probe import neighbour_agreement
from pilot_export.sources.given import Given
from pilot_export.sources.json_file import read_json
from pilot_export.sources.naming import model_name
from pilot_export.sources.pooling import Pooling, read_pooling
from pilot_export.sources.texts import read_texts, text_batches
from pilot_export.spec import CLASSIFIER, ENCODER, ExportSpec, Thresholds

if TYPE_CHECKING:
    import torch

DEFAULT_MAX_BATCH_SIZE = 32
EMBEDDING = "sentence_embedding"


@dataclass(frozen=True)
class EncoderTask:
    """`wrap(model, pooling)` gives a module that takes input_ids and attention_mask; pooling is for embeddings only."""

    auto_class: str
    output: str
    thresholds: Thresholds
    wrap: Callable[[Any, Pooling | None], "torch.nn.Module"]


def huggingface_spec(folder: Path, given: Given) -> ExportSpec:
    """The spec of the model in `folder`.

    Raises:
        SpecError: a file that is missing, an architecture that is no encoder task, or too few texts.
    """
    config = _config(folder)
    task = _task(folder, config)
    if given.free_axes:
        raise SpecError("--free-axis: the tokens of a Hugging Face encoder are free already; leave the option out")
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise SpecError(
            f"{folder} has no tokenizer.json: save it with AutoTokenizer.from_pretrained(...).save_pretrained"
        )
    pooling = read_pooling(folder) if task.output == EMBEDDING else None
    max_batch_size = given.max_batch_size or DEFAULT_MAX_BATCH_SIZE
    data = text_batches(tokenizer_file, read_texts(given.data), _max_tokens(config), max_batch_size)
    labels = _labels(folder, config) if task.auto_class == "AutoModelForSequenceClassification" else None
    num_rows = sum(len(batch["input_ids"]) for batch in data.evaluation)
    return ExportSpec(
        name=model_name(given.name, folder),
        load_module=lambda: _load(folder, task, pooling),
        example=data.example,
        outputs=(task.output,),
        evaluation=data.evaluation,
        thresholds=task.thresholds,
        samples=data.samples,
        free_axes={name: {1: "sequence"} for name in ("input_ids", "attention_mask")},
        extra_measures={}
        if pooling is None
        else {"same nearest neighbour": neighbour_agreement(task.output, num_queries=num_rows)},
        edge_cases=data.edge_cases,
        max_batch_size=max_batch_size,
        assets={"tokenizer.json": tokenizer_file},
        calibration=data.calibration,
        labels={} if labels is None else {task.output: labels},
        source=str(folder),
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise SpecError(
            f"{folder} has no config.json, so it is no Hugging Face folder; a folder of a model repository is no source"
        )
    config: dict[str, Any] = read_json(path, dict)
    if not list(folder.glob("*.safetensors")):
        raise SpecError(
            f"{folder} has no *.safetensors: pickled weights (pytorch_model.bin) run code when they are read; load the "
            "model where you trust it and save it with save_pretrained"
        )
    return config


def _task(folder: Path, config: dict[str, Any]) -> EncoderTask:
    names = config.get("architectures") or []
    name = names[0] if names else ""
    if name.endswith("ForCausalLM"):
        raise SpecError(f"{folder} is a language model ({name}): tritonpilot export llm {folder}")
    for ending, task in _TASKS.items():
        if name.endswith(ending):
            return task
    raise SpecError(
        f"{folder}: architecture {name or 'missing in config.json'} is no encoder task that export knows (it ends in "
        f"{', '.join(_TASKS)}): write a spec in Python, export/examples/ has one to start from"
    )


def _load(folder: Path, task: EncoderTask, pooling: Pooling | None) -> "torch.nn.Module":
    import transformers

    try:
        # With attention kernels the exporter would write another graph than the plain one that runtimes fuse.
        model = getattr(transformers, task.auto_class).from_pretrained(
            folder, attn_implementation="eager", local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise SpecError(f"{folder} cannot be loaded by {task.auto_class}: {' '.join(str(error).split())}") from error
    return task.wrap(model, pooling)


def _embeddings(model: Any, pooling: Pooling | None) -> "torch.nn.Module":
    import torch

    if pooling is None:
        raise SpecError("an embedding needs to know its pooling")
    by_first_token, is_normalized = pooling.by_first_token, pooling.is_normalized

    class Embeddings(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            if by_first_token:
                pooled = hidden[:, 0]
            else:
                mask = attention_mask.to(hidden.dtype)[:, :, None]
                pooled = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            return torch.nn.functional.normalize(pooled, dim=-1) if is_normalized else pooled

    return Embeddings()


def _classification(model: Any, _pooling: Pooling | None) -> "torch.nn.Module":
    import torch

    class Classification(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            return logits

    return Classification()


def _token_classification(model: Any, _pooling: Pooling | None) -> "torch.nn.Module":
    import torch

    class TokenClassification(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
            # What stands at padding means nothing, and must not be judged.
            return logits * attention_mask.to(logits.dtype)[:, :, None]

    return TokenClassification()


_TASKS = {
    "ForSequenceClassification": EncoderTask(
        "AutoModelForSequenceClassification", "logits", CLASSIFIER, _classification
    ),
    "ForTokenClassification": EncoderTask(
        "AutoModelForTokenClassification", "logits", CLASSIFIER, _token_classification
    ),
    "Model": EncoderTask("AutoModel", EMBEDDING, ENCODER, _embeddings),
}


def _max_tokens(config: dict[str, Any]) -> int:
    positions = int(config.get("max_position_embeddings") or 512)
    # RoBERTa's positions begin after the padding's.
    return min(512, positions - 2 if config.get("model_type") in ("roberta", "xlm-roberta", "camembert") else positions)


def _labels(folder: Path, config: dict[str, Any]) -> tuple[str, ...] | None:
    names = config.get("id2label")
    if not names:
        return None
    wanted = [str(index) for index in range(len(names))]
    if not isinstance(names, dict) or (missing := [index for index in wanted if index not in names]):
        lacks = f"has no name for class {missing[0]}" if isinstance(names, dict) else "is no table"
        raise SpecError(f"{folder}/config.json: id2label {lacks}: give each class from 0 on one")
    return tuple(str(names[index]) for index in wanted)
