"""What does each layer of a transformers model ask of attention? Found by one short forward, not by its name.

transformers calls an attention function (its AttentionInterface) with queries, keys, values, a mask and options. For
one forward that function is ours, and so is the one that makes masks: it hands out, instead of a mask, the rule that
would have made it, which can be asked about positions far beyond the short prompt. Whatever a layer asks for that
paged attention does not do is an error that names it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pilot_llm.models.decoder_config import UnsupportedModelError

PROBE, PAGED = "tritonpilot_probe", "tritonpilot_paged"
"""Names in transformers' registries: with the rules of masks, and without any mask."""

ATTEND = "tritonpilot_attend"
"""Attribute of a module: what its attention calls go to."""

_TOKENS = (1, 0, 2, 1, 3)

# Options that are handled, or change nothing once there is no dropout and no cache of transformers' own.
_KNOWN_OPTIONS = frozenset(
    {
        *("scaling", "softcap", "s_aux", "dropout", "is_causal", "sliding_window"),
        *("position_ids", "cache_position", "position_embeddings", "use_cache", "deterministic", "target_dtype"),
        *("output_attentions", "output_hidden_states", "output_router_logits"),
    }
)

MaskRule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(batch, head, query position, key position) -> whether the query sees the key; broadcasts."""


@dataclass(frozen=True)
class LayerAttention:
    """One layer's attention. `window`: how many latest tokens a query sees; None for all. `sinks` is [num_heads]."""

    module: torch.nn.Module
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scaling: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


def register() -> None:
    """Make `PROBE` and `PAGED` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(PROBE, _hand_over)
    AttentionInterface.register(PAGED, _hand_over)
    # A name without a mask function gets no masks.
    AttentionMaskInterface.register(PROBE, _mask_rule)


@torch.inference_mode()
def probe(model: Any, num_positions: int) -> list[LayerAttention]:
    """One entry per layer, in the order in which the layers run.

    Args:
        model: a transformers causal LM. Its attention implementation is left as `PROBE`.
        num_positions: how long sequences may get; nothing is said about positions beyond.

    Raises:
        UnsupportedModelError: it does not go through the interface in every layer, or asks for something that paged
            attention does not do.
    """
    recorder = _Recorder(num_positions)
    model.set_attn_implementation(PROBE)
    for module in model.modules():
        setattr(module, ATTEND, partial(recorder, module))
    device = next(model.parameters()).device
    try:
        model(
            input_ids=torch.tensor([_TOKENS], device=device),
            position_ids=torch.arange(len(_TOKENS), device=device)[None],
            use_cache=False,
        )
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(f"a forward without a cache of its own fails: {error}") from error
    finally:
        for module in model.modules():
            delattr(module, ATTEND)
    _check_together(model, recorder.layers)
    return recorder.layers


def check_kind(model: Any) -> None:
    """
    Raises:
        UnsupportedModelError: it keeps a state of its own, or cannot be told positions.
    """
    config = model.config.get_text_config()
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError("its layers keep a state of their own (linear attention, SSM, recurrence)")
    # Chunks are tried: a context of one chunk is full attention.
    known = {"full_attention", "sliding_attention", "chunked_attention"}
    if kinds := set(getattr(config, "layer_types", None) or ()) - known:
        raise UnsupportedModelError(f"its layers of type {', '.join(sorted(kinds))} are not supported")
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError("it cannot be told positions (ALiBi, or relative to the row that it is given)")


def _hand_over(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    attend: Any = getattr(module, ATTEND)
    return attend(query, key, value, attention_mask, **options), None


def _mask_rule(*, kv_length: int, mask_function: MaskRule, **others: Any) -> torch.Tensor:
    mask = torch.ones(1, 1, 1, kv_length, dtype=torch.bool)
    mask.tritonpilot_rule = mask_function  # type: ignore[attr-defined]
    return mask


@dataclass
class _Recorder:
    num_positions: int
    layers: list[LayerAttention] = field(default_factory=list)

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> torch.Tensor:
        where = f"{type(module).__name__} of layer {len(self.layers)}"
        _check_shapes(where, query, key, value)
        if unknown := sorted(
            name
            for name, given in options.items()
            if name not in _KNOWN_OPTIONS and given is not None and given is not False
        ):
            raise UnsupportedModelError(f"{where} asks for {', '.join(unknown)}, which is not implemented")
        if options.get("is_causal") is False:
            raise UnsupportedModelError(f"{where} is not causal")
        if any(layer.module is module for layer in self.layers):
            raise UnsupportedModelError(f"{where} attends twice in one forward")
        rule = getattr(attention_mask, "tritonpilot_rule", None)
        if rule is None:
            raise UnsupportedModelError(f"{where} masks in a way of its own (a bias, or a mask that is not shared)")
        scaling = options.get("scaling")
        self.layers.append(
            LayerAttention(
                module,
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                key_dim=query.shape[3],
                value_dim=value.shape[3],
                scaling=float(query.shape[3] ** -0.5 if scaling is None else scaling),
                window=window_of(rule, self.num_positions, where),
                softcap=options.get("softcap"),
                sinks=options.get("s_aux"),
            )
        )
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def _check_shapes(where: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    is_self_attention = query.shape[0] == 1 and query.shape[2] == key.shape[2] == value.shape[2] == len(_TOKENS)
    is_grouped = key.shape[1] == value.shape[1] and query.shape[1] % key.shape[1] == 0
    if not (is_self_attention and is_grouped and query.shape[3] == key.shape[3] >= value.shape[3]):
        raise UnsupportedModelError(
            f"{where} attends with queries {list(query.shape)}, keys {list(key.shape)} and values {list(value.shape)}: "
            "this is no causal self-attention"
        )


def window_of(rule: MaskRule, num_positions: int, where: str) -> int | None:
    """How many latest tokens a query sees, None for all of `num_positions`.

    Raises:
        UnsupportedModelError: what it sees is something else.
    """
    keys = torch.arange(num_positions)
    zero = torch.tensor(0)

    def seen_from(position: int) -> torch.Tensor:
        return rule(zero, zero, torch.tensor(position), keys).expand(num_positions)

    window = int(seen_from(num_positions - 1).sum())
    at_edges = {0, 1, window - 1, window, window + 1, num_positions // 2, num_positions - 2, num_positions - 1}
    for position in at_edges | set(range(0, num_positions, max(1, num_positions // 31))):
        if 0 <= position < num_positions:
            latest = (keys <= position) & (keys > position - window)
            if not torch.equal(seen_from(position), latest):
                raise UnsupportedModelError(
                    f"{where} lets the token at position {position} see something else than its latest tokens: "
                    "only full and sliding-window causal attention are implemented"
                )
    return None if window == num_positions else window


def _check_together(model: Any, layers: list[LayerAttention]) -> None:
    num_layers = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    if not layers:
        raise UnsupportedModelError("its attention does not go through transformers' AttentionInterface")
    if num_layers is not None and num_layers != len(layers):
        raise UnsupportedModelError(
            f"{len(layers)} of {num_layers} layers go through transformers' AttentionInterface: the others mix tokens "
            "in a way of their own"
        )
    shapes = {(layer.num_kv_heads, layer.key_dim) for layer in layers}
    if len(shapes) > 1:
        shown = ", ".join(f"{heads} of {size}" for heads, size in sorted(shapes))
        raise UnsupportedModelError(f"its layers differ in their key-value heads ({shown}), which must be alike")
