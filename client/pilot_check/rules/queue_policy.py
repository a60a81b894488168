"""Queue policies that the server refuses, and those that it takes but that can never come to anything."""

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelQueuePolicy

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings


def check_queue_policy(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    batching = model.config.dynamic_batching
    default: tuple[str | int, ...] = ("dynamic_batching", "default_queue_policy")
    policies = [(default, batching.default_queue_policy)] if batching.HasField("default_queue_policy") else []
    for level in batching.priority_queue_policy:
        place = (*_level(model, level), "value")
        policies.append((place, batching.priority_queue_policy[level]))
    for place, policy in policies:
        yield from _check_policy(model, policy, place, batching.preserve_ordering)
    yield from _check_priorities(model, batching)


def _check_policy(
    model: Model, policy: Any, place: tuple[str | int, ...], preserves_ordering: bool
) -> Iterator[Finding]:
    if policy.default_timeout_microseconds == 0:
        if policy.allow_timeout_override:
            # A request may only shorten the timeout of the policy, and 0 counts as the shortest of all.
            yield model.error(
                "queue-override",
                "allow_timeout_override has no effect without default_timeout_microseconds",
                "set default_timeout_microseconds to the longest wait that a request may ask for",
                *(*place, "allow_timeout_override"),
            )
        if model.source.has(*place, "timeout_action"):
            yield model.error(
                "queue-action",
                "timeout_action is never taken: without default_timeout_microseconds nothing times out",
                "set default_timeout_microseconds, or leave timeout_action out",
                *(*place, "timeout_action"),
            )
    elif preserves_ordering and policy.timeout_action == ModelQueuePolicy.DELAY:
        message = "timeout_action DELAY does not go with preserve_ordering"
        yield model.error("queue-order", message, "REJECT, or no preserve_ordering", *place, "timeout_action")


def _check_priorities(model: Model, batching: Any) -> Iterator[Finding]:
    levels = batching.priority_levels
    if levels == 0:
        for field in ("default_priority_level", "priority_queue_policy"):
            if model.source.has("dynamic_batching", field):
                message = f"{field} has no effect without priority_levels"
                yield model.error("queue-priority", message, "set priority_levels", "dynamic_batching", field)
        return
    if not 1 <= batching.default_priority_level <= levels:
        yield model.error(
            "queue-priority",
            f"default_priority_level {batching.default_priority_level} is not between 1 and priority_levels {levels}",
            "set it",
            *("dynamic_batching", "default_priority_level"),
        )
    for level in batching.priority_queue_policy:
        if not 1 <= level <= levels:
            message = f"priority_queue_policy is for level {level}, but levels are 1 to {levels}"
            yield model.error("queue-priority", message, "name a level that there is", *_level(model, level))
    if levels > 1 and batching.preserve_ordering:
        message = f"preserve_ordering does not go with {levels} priority levels"
        yield model.error("queue-order", message, "one or the other", "dynamic_batching", "preserve_ordering")
    if batching.HasField("default_queue_policy") and all(
        level in batching.priority_queue_policy for level in range(1, levels + 1)
    ):
        message = "default_queue_policy is never used: every level has a policy of its own"
        yield model.warning("queue-default", message, "leave it out", "dynamic_batching", "default_queue_policy")


def _level(model: Model, level: int) -> tuple[str | int, ...]:
    field = "priority_queue_policy"
    return ("dynamic_batching", field, model.source.entry(field, level, "dynamic_batching"))
