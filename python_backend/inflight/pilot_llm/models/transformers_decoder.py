"""Any causal language model that transformers implements, on our paged attention.

transformers lets a model's attention be replaced by a function (its AttentionInterface). Ours stores the keys and
values of a whole flat batch in the paged cache and lets each query see its own sequence; so the model runs on one row
of T tokens, and does not notice that they belong to many sequences.

    load       weights, by transformers' own code, never by code from the model's folder
    probe      what does each layer ask of attention? (attention_probe.py)
    check      the same tokens through the model's own attention give the same logits (transformers_check.py)

The first two refuse what they know to be wrong; the last one, whatever else is.
"""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad

from pilot_llm.attention import PagedAttention
from pilot_llm.attention.scores import ScoreRule
from pilot_llm.models.attention_probe import ATTEND, LayerAttention, check_kind, probe, register
from pilot_llm.models.decoder_config import UnsupportedModelError, unknown_fields
from pilot_llm.models.loaded import LoadedModel
from pilot_llm.models.transformers_check import CHECKED_TOKENS, check_against_own_attention

# transformers' two rules whose frequencies depend on the longest sequence of a batch.
_ROPE_BY_LENGTH = ("dynamic", "longrope")


class TransformersDecoder:
    """A transformers model whose layers attend through ours. Used by one thread, for one KV cache."""

    def __init__(self, model: Any, layers: list[LayerAttention], attention: PagedAttention) -> None:
        self._model = model
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        for index, layer in enumerate(layers):
            setattr(layer.module, ATTEND, _PagedLayer(index, layer, attention, model.dtype))

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, sampled_rows: torch.Tensor) -> torch.Tensor:
        """Logits [S, vocab] of the sampled rows. The attention's step must have begun."""
        kept = {"logits_to_keep": sampled_rows} if self._keeps_rows else {}
        output = self._model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **kept)
        logits: torch.Tensor = output.logits[0]
        return logits if self._keeps_rows else logits[sampled_rows]


class _PagedLayer:
    """One layer's attention calls, as transformers makes them, on ours."""

    def __init__(self, index: int, layer: LayerAttention, attention: PagedAttention, dtype: torch.dtype) -> None:
        self._index = index
        self._attention = attention
        self._dtype = dtype
        self._missing_dims = layer.key_dim - layer.value_dim
        # Ours divides scores by the root of the head's size; what the model wants beyond that goes into its queries.
        self._query_factor = layer.scaling * layer.key_dim**0.5

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None, **options: Any
    ) -> torch.Tensor:
        """[1, heads, T, size] each -> [1, T, heads, size of a value]."""
        num_heads, num_tokens, key_dim = query.shape[1:]
        if self._missing_dims:
            value = pad(value, (0, self._missing_dims))
        query, key, value = (side[0].transpose(0, 1).to(self._dtype).contiguous() for side in (query, key, value))
        if abs(self._query_factor - 1) > 1e-6:
            query = query * self._query_factor
        mixed = self._attention.attend(self._index, query, key, value).view(1, num_tokens, num_heads, key_dim)
        return mixed[..., : key_dim - self._missing_dims]


def load_transformers_model(
    folder: Path, *, dtype: torch.dtype, device: torch.device, max_model_len: int | None
) -> LoadedModel:
    """
    Args:
        max_model_len: what the user asks for; None for what the model was made for.

    Raises:
        UnsupportedModelError: transformers cannot load it as a causal LM, or attention in it cannot be paged.
    """
    config = read_transformers_config(folder)
    model = _load(folder, dtype, device)
    check_kind(model)
    max_positions, limited_by = _max_positions(config.get_text_config(), max_model_len)
    register()
    # Not shorter than what the check runs.
    layers = probe(model, max(min(max_model_len or max_positions, max_positions), CHECKED_TOKENS))
    loaded = LoadedModel(
        description=f"{config.model_type} through transformers",
        vocab_size=_vocab_size(model),
        num_kv_heads=layers[0].num_kv_heads,
        head_dim=layers[0].key_dim,
        windows=tuple(layer.window for layer in layers),
        max_positions=max_positions,
        limited_by=limited_by,
        connect=lambda attention: TransformersDecoder(model, layers, attention),
        score_rules=_score_rules(layers),
    )
    check_against_own_attention(model, loaded)
    return loaded


def read_transformers_config(folder: Path) -> Any:
    """
    Raises:
        UnsupportedModelError: see the message; it is read without the weights.
    """
    try:
        from transformers import AttentionMaskInterface, AutoConfig  # noqa: F401
    except ImportError as error:
        raise UnsupportedModelError(f"models of other families need transformers 4.57 or newer: {error}") from error
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # of any kind, from a class per model
        raise UnsupportedModelError(f"transformers cannot read config.json: {_first_line(error)}") from error
    for name in ("is_encoder_decoder", "add_cross_attention"):
        if getattr(config, name, False):
            raise UnsupportedModelError(f"{name} is set: only decoders alone are supported")
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedModelError("quantization_config is set: quantised checkpoints are not supported")
    _refuse_unknown(folder, config)
    return config


def _refuse_unknown(folder: Path, config: Any) -> None:
    """A field of a family that the native decoder knows must mean something to one of the two.

    Other families' files are full of fields of older versions; there, what transformers makes of them is the model.
    """
    declared = set(type(config)().to_dict()) | set(type(config).attribute_map)
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if unknown := [name for name in unknown_fields(fields) if name not in declared]:
        raise UnsupportedModelError(f"it does not know the field {', '.join(map(repr, unknown))} either")


def _max_positions(config: Any, max_model_len: int | None) -> tuple[int, str]:
    """The longest sequence that is computed alike in any batch, and what limits it."""
    trained = getattr(config, "max_position_embeddings", None) or max_model_len
    if trained is None:
        raise UnsupportedModelError("config.json says no max_position_embeddings: set max_model_len in model.json")
    limits = [(int(trained), "max_position_embeddings in config.json")]
    fields = config.to_dict()
    for parameters in _rope_parameters(fields):
        kind = parameters.get("rope_type") or parameters.get("type")
        if kind in _ROPE_BY_LENGTH:
            # Phi-3 says it beside the parameters.
            names = (parameters, fields)
            lengths = [part.get("original_max_position_embeddings") for part in names]
            original = next((length for length in lengths if length), trained)
            limits.append((int(original), f"rope_type {kind!r} turns all of a batch by its longest sequence beyond"))
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        limits.append((int(config.attention_chunk_size), "attention_chunk_size in config.json: one chunk"))
    return min(limits)


def _rope_parameters(fields: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """`rope_parameters` and `rope_scaling`, also one per kind of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        parameters = fields.get(name)
        if isinstance(parameters, Mapping):
            yield parameters
            yield from (part for part in parameters.values() if isinstance(part, Mapping))


def _score_rules(layers: Sequence[LayerAttention]) -> tuple[ScoreRule | None, ...]:
    rules = tuple(
        None if layer.softcap is None and layer.sinks is None else ScoreRule(layer.softcap, layer.sinks)
        for layer in layers
    )
    return rules if any(rules) else ()


def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # a server's log is no terminal
    try:
        model, notes = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise UnsupportedModelError(f"transformers cannot load it: {_first_line(error)}") from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if names := sorted(str(name) for name in notes.get(kind, ())):
            raise UnsupportedModelError(f"the weights do not fit the model: {kind} {', '.join(names[:5])}")
    for tensor in (*model.parameters(), *model.buffers()):
        # They map the file: that would break if it were written over while we serve.
        tensor.data = tensor.data.to(device, copy=True)
    return model.eval()


def _vocab_size(model: Any) -> int:
    """Every token that can be sampled must be one that can be fed."""
    num_rows = int(model.get_input_embeddings().weight.shape[0])
    num_logits = int(model.get_output_embeddings().weight.shape[0])
    if num_logits != num_rows:
        raise UnsupportedModelError(f"it has {num_rows} input embeddings and {num_logits} output rows")
    return num_rows


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
