"""The rules, in the order in which a server would meet them. Each is `rule(model, surroundings) -> findings`."""

from collections.abc import Callable, Iterable

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings
from pilot_check.rules.accelerators import check_accelerators
from pilot_check.rules.backend import check_backend, check_onnxruntime_settings
from pilot_check.rules.borrowed_version import check_borrowed_version
from pilot_check.rules.ensemble import check_ensemble
from pilot_check.rules.ensemble_models import check_ensemble_models
from pilot_check.rules.folder import check_files, check_labels, check_name, check_weights
from pilot_check.rules.instances import check_devices, check_oversubscription
from pilot_check.rules.onnx_graph import check_graph
from pilot_check.rules.queue_policy import check_queue_policy
from pilot_check.rules.scheduling import check_dynamic_batching, check_policies, check_sequence_batching
from pilot_check.rules.tensors import check_batching, check_tensors
from pilot_check.rules.torch_pipeline import check_torch_pipeline

Rule = Callable[[Model, Surroundings], Iterable[Finding]]

RULES: tuple[Rule, ...] = (
    check_name,
    check_backend,
    check_files,
    check_borrowed_version,
    check_weights,
    check_labels,
    check_tensors,
    check_batching,
    check_graph,
    check_onnxruntime_settings,
    check_torch_pipeline,
    check_accelerators,
    check_dynamic_batching,
    check_queue_policy,
    check_sequence_batching,
    check_policies,
    check_devices,
    check_oversubscription,
    check_ensemble,
    check_ensemble_models,
)
