"""What one instance does with the requests of an execute(): arrays in, arrays or an exception out.

It knows the tensors but not Triton, so that it runs (and is tested and timed) without a server.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnxruntime

from pilot_onnxruntime.batching import Array, Feed, run_requests
from pilot_onnxruntime.session import signature_of
from pilot_onnxruntime.signature import check_config
from pilot_onnxruntime.strings import decoded


class Instance:
    """A session with the tensors that a model configuration serves from it. Not for several threads at once."""

    def __init__(
        self, session: onnxruntime.InferenceSession, config: Mapping[str, Any], run_entries: Mapping[str, str]
    ) -> None:
        """Raises LoadError where the configuration and the graph disagree."""
        graph = signature_of(session)
        check_config(config, graph)
        self._session = session
        self._is_batched = config["max_batch_size"] > 0
        self.output_names = [entry["name"] for entry in config["output"]]
        # Triton's tensors have one dimension or more, a graph may have scalars; without a batch only (signature.py).
        self._scalar_inputs = {spec.name for spec in graph.inputs if not spec.dims}
        scalars = {spec.name for spec in graph.outputs if not spec.dims}
        self._scalar_output_dims = {e["name"]: len(e["dims"]) * [1] for e in config["output"] if e["name"] in scalars}
        self._text_inputs = {spec.name for spec in graph.inputs if spec.triton_type == "TYPE_STRING"}
        self._is_plain = not (self._scalar_inputs or self._text_inputs)
        self._run_options = None
        if run_entries:
            self._run_options = onnxruntime.RunOptions()
            for key, value in run_entries.items():
                self._run_options.add_run_config_entry(key, value)

    def feed(self, arrays: dict[str, Array]) -> Feed:
        """The arrays of one request as the graph takes them.

        Raises:
            RequestError: an array that the graph cannot take.
        """
        if self._is_plain:
            return arrays
        for name, array in arrays.items():
            if name in self._text_inputs:
                array = decoded(array, name)
            arrays[name] = array.reshape(()) if name in self._scalar_inputs else array
        return arrays

    def run(self, feeds: Sequence[Feed], output_names: Sequence[str]) -> list[Sequence[Array] | Exception]:
        """The outputs of each request in the order of `output_names`, or what its run raised."""
        results = run_requests(self._run_session, feeds, output_names, is_batched=self._is_batched)
        if not self._scalar_output_dims:
            return results
        return [result if isinstance(result, Exception) else self._lifted(output_names, result) for result in results]

    def wanted(self, requested: Iterable[Iterable[str]]) -> list[str]:
        """The outputs that any of the requests asks for, in the order of the configuration."""
        names = {name for request in requested for name in request}
        return [name for name in self.output_names if name in names]

    def _run_session(self, output_names: Sequence[str], feed: Feed) -> Sequence[Array]:
        outputs: Sequence[Array] = self._session.run(output_names, feed, self._run_options)
        return outputs

    def _lifted(self, output_names: Sequence[str], outputs: Sequence[Array]) -> list[Array]:
        dims = self._scalar_output_dims
        return [
            output.reshape(dims[name]) if name in dims else output
            for name, output in zip(output_names, outputs, strict=True)
        ]
