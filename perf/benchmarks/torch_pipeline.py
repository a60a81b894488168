"""What overlapped stages are worth: photos through torch_pipeline, sentences through the ensemble minilm_text.

    python perf/benchmarks/torch_pipeline.py [--quick] [--repository DIR] [--json FILE]

    photos      a JPEG file of 2.6 megapixels in (labelled photos, enlarged to what a camera gives), the five
                likeliest of 1,000 classes out: decode and resize (PIL) | EfficientNet-Lite0, one thread | sort and
                name. Serial is `batches_in_flight: 1`, one request after the other through the three stages;
                overlapped is 3. The same clients for both: 6 requests always in flight
    sentences   text in, embedding out: tokeniser | encoder, one thread | whole numbers, three models of one instance
                each. Serial is one request at a time, overlapped is 6 in flight, without dynamic batching: what is
                measured is that the stages overlap, not that they batch

The two sides take turns. One thread for the module, so that the other stages have the rest of the machine: on one core
there is nothing to overlap with. The timeline of ten requests is drawn from what the server itself recorded, in a
window of its own.
"""

import argparse
import io
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
from closed_loop import Inputs, requests_per_s
from PIL import Image
from safetensors.torch import save_file
from stage_drawing import Span, draw, overlap_share

from pilot_base.cpus import usable_cpus
from pilot_client import repository
from pilot_client.model_config import read
from pilot_export.samples import efficientnet, minilm, photos, sentences
from pilot_perf.conditions import cpu_name
from pilot_perf.ratio import METHOD, paired_ratio
from pilot_server import model_repository_dir
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer

IN_FLIGHT = 6
CAMERA_PIXELS = 1600
DRAWN = 10
STEPS = ("minilm_tokenizer", "minilm_encoder", "minilm_postprocess")
PHOTO_CONFIG = """\
name: "photos"
backend: "torch_pipeline"
max_batch_size: 1
input [ { name: "photo" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "classes" data_type: TYPE_STRING dims: [ 5 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "module" value { string_value: "pilot_export.samples.efficientnet_model:EfficientNetLite0" } }
parameters { key: "preprocess" value { string_value: "stages.py:decode" } }
parameters { key: "postprocess" value { string_value: "stages.py:name_classes" } }
parameters { key: "module_outputs" value { string_value: "logits" } }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
PHOTO_STAGES = """\
import io

import numpy as np
from PIL import Image

from pilot_export.samples.photos import class_names

NAMES = class_names()


def decode(inputs):
    try:
        images = [Image.open(io.BytesIO(data)).convert("RGB") for data in inputs["photo"].reshape(-1)]
    except (OSError, SyntaxError) as error:
        raise ValueError(f"no picture: {error}") from error
    return {"image": np.stack([np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC)) for image in images])}


def name_classes(outputs):
    best = np.argsort(-outputs["logits"], axis=1)[:, :5]
    return {"classes": np.array([[NAMES[index].encode() for index in row] for row in best], dtype=np.object_)}
"""


def measure(sides: dict[str, Callable[[float], float]], rounds: int, window_s: float) -> dict[str, Any]:
    """Requests/s of both sides, in turn; the first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for index in range(-1, rounds):
        for name, side in sides.items():
            rate = side(window_s)
            if index >= 0:
                rates[name].append(rate)
    ratio = paired_ratio(rates["overlapped"], rates["serial"])
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"requests_per_s": rates, "medians": medians, "ratio": str(ratio)}


def photo_models(models: Path, timeline: Path) -> None:
    """`serial` and `overlapped`: the same module, and as many batches in its pipeline as the name says."""
    state = efficientnet.classifier().state_dict()
    for name, in_flight in (("serial", 1), ("overlapped", 3)):
        version = models / name / "1"
        version.mkdir(parents=True)
        save_file(dict(state), version / "model.safetensors")
        (version / "stages.py").write_text(PHOTO_STAGES)
        config = PHOTO_CONFIG.replace('"photos"', f'"{name}"')
        for key, value in (("batches_in_flight", in_flight), ("timeline_file", timeline / f"{name}.jsonl")):
            config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        (models / name / "config.pbtxt").write_text(config)


def camera_file(path: Path) -> bytes:
    """A photo as a camera would give it: CAMERA_PIXELS on a side, as JPEG."""
    file = io.BytesIO()
    image = Image.open(path).convert("RGB")
    image.resize((CAMERA_PIXELS, CAMERA_PIXELS), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def photo_spans(file: Path, last: int) -> list[Span]:
    """The last requests of a timeline that torch_pipeline wrote; with max_batch_size 1 a batch is a request."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    numbers = sorted({line["batch"] for line in lines})[-last:]
    return [
        Span(line["batch"] - numbers[0] + 1, line["stage"], line["start_s"], line["end_s"])
        for line in lines
        if line["batch"] in numbers
    ]


def run_photos(room: Path, rounds: int, window_s: float) -> dict[str, Any]:
    models = room / "photos"
    photo_models(models, room)
    files = [camera_file(photo.path) for photo in photos.labelled_photos()]
    requests: list[Inputs] = [{"photo": np.array([[file]], dtype=np.object_)} for file in files]
    with start_embedded(models, ready_timeout_s=180.0) as server:

        def side(name: str) -> Callable[[float], float]:
            return lambda window: requests_per_s(server.grpc_url, name, requests, IN_FLIGHT, window)

        result = measure({name: side(name) for name in ("serial", "overlapped")}, rounds, window_s)
    stages = ("prepare", "compute", "finish")
    for name in ("serial", "overlapped"):
        spans = photo_spans(room / f"{name}.jsonl", DRAWN)
        result[f"timeline {name}"] = draw(spans, stages)
        result[f"stages at once, {name}"] = round(overlap_share(spans), 2)
    return result


def ensemble_models(source: Path, models: Path) -> None:
    for name in (*STEPS, "minilm_text"):
        shutil.copytree(model_repository_dir() / name, models / name)
    (models / "minilm").symlink_to(source / "minilm")


def load_encoder(server: RunningServer, models: Path) -> None:
    """Of one thread, and without batching."""
    config = read(models / "minilm_encoder")
    config.ClearField("dynamic_batching")
    config.parameters["intra_op_thread_count"].string_value = "1"
    repository.load(server.grpc_url, "minilm_encoder", config)
    for name in ("minilm_tokenizer", "minilm_postprocess", "minilm_text"):
        repository.load(server.grpc_url, name)


def trace_spans(file: Path) -> list[Span]:
    """The computing time of each step, from the server's trace: its events of one request carry one parent."""
    events = [event for path in sorted(file.parent.glob(f"{file.name}*")) for event in json.loads(path.read_text())]
    models = {event["id"]: event["model_name"] for event in events if "model_name" in event}
    parents = {event["id"]: event["parent_id"] for event in events if "parent_id" in event}
    times: dict[int, dict[str, int]] = {}
    for event in events:
        for stamp in event.get("timestamps", ()):
            times.setdefault(event["id"], {})[stamp["name"]] = stamp["ns"]
    spans, numbers = [], {}
    for step, stamps in sorted(times.items()):
        if models.get(step) in STEPS and {"COMPUTE_START", "COMPUTE_END"} <= set(stamps):
            number = numbers.setdefault(parents.get(step), len(numbers) + 1)
            spans.append(Span(number, models[step], stamps["COMPUTE_START"] / 1e9, stamps["COMPUTE_END"] / 1e9))
    return spans


def run_sentences(room: Path, source: Path, rounds: int, window_s: float) -> dict[str, Any]:
    models = room / "sentences"
    models.mkdir()
    ensemble_models(source, models)
    texts = [item.text for item in sentences.rated_sentences()[::50]]
    requests: list[Inputs] = [{"text": np.array([[text]], dtype=np.object_)} for text in texts]
    trace = room / "trace.json"
    arguments = [f"--trace-config=triton,file={trace}", "--trace-config=level=OFF"]
    with start_embedded(models, load=[], extra_args=arguments, ready_timeout_s=180.0) as server:
        load_encoder(server, models)

        def side(in_flight: int) -> Callable[[float], float]:
            return lambda window: requests_per_s(server.grpc_url, "minilm_text", requests, in_flight, window)

        result = measure({"serial": side(1), "overlapped": side(IN_FLIGHT)}, rounds, window_s)
        settings = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": str(DRAWN)}
        tritonclient.grpc.InferenceServerClient(server.grpc_url).update_trace_settings(settings=settings)
        side(IN_FLIGHT)(1.0)
    spans = trace_spans(trace)
    if spans:
        result["timeline overlapped"] = draw(spans, STEPS)
        result["stages at once, overlapped"] = round(overlap_share(spans), 2)
    return result


def show(title: str, result: dict[str, Any]) -> None:
    medians = result["medians"]
    print(f"\n{title}: serial {medians['serial']:.1f}/s, overlapped {medians['overlapped']:.1f}/s (medians)")
    print(f"ratio overlapped / serial: {result['ratio']}")
    for key, value in result.items():
        if key.startswith("timeline"):
            print(f"{key}\n{value}")
        elif key.startswith("stages"):
            print(f"{key}: {value}")


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 rounds of 3 s instead of 6 of 6 s")
    parser.add_argument(
        "--repository",
        type=Path,
        default=Path("build/model_repository"),
        help=f"where `tritonpilot export model {minilm.NAME}` has put its files (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(argv)
    if not (options.repository / minilm.NAME / "1" / "model.fp32.onnx").is_file():
        parser.error(f"{options.repository} holds no {minilm.NAME}: run `tritonpilot export model {minilm.NAME}` first")
    rounds, window_s = (3, 3.0) if options.quick else (6, 6.0)
    print(f"{cpu_name()}, {usable_cpus()} CPUs; {rounds} rounds of {window_s:g} s a side in turn; {METHOD}")
    results = {}
    with tempfile.TemporaryDirectory(prefix="torch-pipeline-") as name:
        results["photos"] = run_photos(Path(name), rounds, window_s)
        show("photos", results["photos"])
        results["sentences"] = run_sentences(Path(name), options.repository.resolve(), rounds, window_s)
        show("sentences", results["sentences"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
