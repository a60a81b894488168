"""A model folder or file becomes a spec, or the error says what it lacks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper, save

from pilot_export import export_model
from pilot_export.errors import SpecError, TraceError
from pilot_export.measures import share
from pilot_export.onnx_original import OnnxOriginal
from pilot_export.report import ExportReport
from pilot_export.sources import load_source
from pilot_export.sources.given import Given
from pilot_export.spec import ExportSpec
from pilot_export.verify import original_runner
from pilot_testing.onnx_models import graph

NUM_ROWS = 330
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")


def export(spec: ExportSpec, tmp_path: Path, **kwargs: Any) -> ExportReport:
    return export_model(
        spec, tmp_path / "repository", build_dir=tmp_path / "build", window_s=0.01, precisions=[], **kwargs
    )


def rows_file(folder: Path, **arrays: Any) -> Path:
    path = folder / "rows.npz"
    np.savez(path, **arrays)
    return path


def vectors(count: int = NUM_ROWS) -> Any:
    return np.random.default_rng(0).normal(size=(count, 4)).astype(np.float32)


class Pair(torch.nn.Module):
    """Two outputs of x [rows, 4] and a scale [rows]."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * scale[:, None], x.sum(dim=1, keepdim=True)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "My pair.pt"
    torch.jit.script(Pair()).save(str(path))
    return path


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    """y = x over rows and lengths."""
    path = tmp_path / "same.onnx"
    shape = ["n", "length", 4]
    save(graph([helper.make_node("Relu", ["x"], ["y"])], [("x", "FP32", shape)], [("y", "FP32", shape)]), str(path))
    return path


def test_a_torchscript_file_is_exported_by_the_names_of_its_arguments(script: Path, tmp_path: Path) -> None:
    data = rows_file(tmp_path, x=vectors(), scale=np.ones(NUM_ROWS, np.float32))
    spec = load_source(str(script), Given(data=data))
    assert (spec.name, spec.outputs) == ("my_pair", ("output_0", "output_1"))
    report = export(spec, tmp_path)
    assert report.installed == ("fp32",)
    quality = report.variants[0].quality
    assert quality is not None
    assert quality.num_rows == 220


class Masked(torch.nn.Module):
    """Over x [rows, length, 4] and mask [rows, length]: the rows of x, and their sum."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        kept = x * mask[:, :, None]
        return kept, kept.sum(dim=1)


def test_a_free_axis_of_a_torchscript_file_is_free_in_its_outputs_too(tmp_path: Path) -> None:
    from pilot_client.model_config import read

    torch.jit.script(Masked()).save(str(tmp_path / "masked.pt"))
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 6, 4)).astype(np.float32)
    data = rows_file(tmp_path, x=x, mask=np.ones((NUM_ROWS, 6), np.float32))
    free = {"x": {1: "length"}, "mask": {1: "length"}}
    spec = load_source(str(tmp_path / "masked.pt"), Given(data=data, free_axes=free))
    shapes = {name: (batch["x"].shape, batch["mask"].tolist()) for name, batch in spec.edge_cases.items()}
    assert shapes == {
        "the longest input (length: 6)": ((1, 6, 4), [[1] * 6]),
        "the shortest input (length: 1)": ((1, 1, 4), [[1]]),
        "a row whose mask is 0": ((2, 6, 4), [[0] * 6, [1] * 6]),
    }
    report = export(spec, tmp_path)
    assert report.installed == ("fp32",)
    quality = report.variants[0].quality
    assert quality is not None
    assert set(shapes) < set(quality.edge_cosines)
    dims = {tensor.name: list(tensor.dims) for tensor in read(tmp_path / "repository" / "masked").output}
    assert dims == {"output_0": [-1, 4], "output_1": [4]}


def test_an_axis_that_the_data_has_not_is_named(script: Path, tmp_path: Path) -> None:
    data = rows_file(tmp_path, x=vectors(), scale=np.ones(NUM_ROWS, np.float32))
    with pytest.raises(SpecError, match=r"axis 3 of x is to be free, but it has 2 axes"):
        load_source(str(script), Given(data=data, free_axes={"x": {3: "length"}}))


def test_a_length_that_the_file_itself_refuses_is_no_edge_case(tmp_path: Path) -> None:
    """A convolution over three values."""
    weight = helper.make_tensor("w", 1, [1, 4, 3], np.ones(12, np.float32))
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"])]
    save(
        graph(nodes, [("x", "FP32", ["n", 4, "t"])], [("y", "FP32", ["n", 1, "u"])], [weight]),
        str(tmp_path / "conv.onnx"),
    )
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 4, 9)).astype(np.float32)
    spec = load_source(str(tmp_path / "conv.onnx"), Given(data=rows_file(tmp_path, x=x)))
    assert list(spec.edge_cases) == ["the longest input (t: 9)"]


def test_an_onnx_file_that_is_too_new_for_the_server_says_how_to_mend_it(tmp_path: Path) -> None:
    shape = ["n", "length", 4]
    new = graph([helper.make_node("Relu", ["x"], ["y"])], [("x", "FP32", shape)], [("y", "FP32", shape)], opset=99)
    save(new, str(tmp_path / "new.onnx"))
    spec = load_source(
        str(tmp_path / "new.onnx"), Given(data=rows_file(tmp_path, x=np.repeat(vectors()[:, None], 4, axis=1)))
    )
    with pytest.raises(TraceError, match=r"has opset 99, Triton 24\.10 reads up to 21 .*convert_version\(model, 21\)"):
        export(spec, tmp_path)
    assert not (tmp_path / "repository").exists()


def test_a_torchscript_file_without_data_says_which_data(script: Path) -> None:
    with pytest.raises(
        SpecError, match=r"give --data rows\.npz, real inputs along axis 0 of x \(as forward takes it\)"
    ):
        load_source(str(script))


def test_data_that_forward_does_not_take_is_named(script: Path, tmp_path: Path) -> None:
    data = rows_file(tmp_path, x=vectors()[:, :, None], scale=np.ones((NUM_ROWS, 3, 5), np.float32))
    with pytest.raises(SpecError, match=r"forward fails on --data's first two rows \(x float32 \[2, 4, 1\]"):
        load_source(str(script), Given(data=data))


def test_a_state_dict_is_no_torchscript_file(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "weights.pt")
    with pytest.raises(SpecError, match=r"is no TorchScript file .* write a spec in Python whose load_module"):
        load_source(str(tmp_path / "weights.pt"))


def test_an_onnx_file_is_its_own_original_and_the_report_says_what_that_proves(onnx_file: Path, tmp_path: Path) -> None:
    data = rows_file(tmp_path, x=np.abs(np.random.default_rng(0).normal(size=(NUM_ROWS, 6, 4))).astype(np.float32))
    spec = load_source(str(onnx_file), Given(data=data, name="renamed", max_batch_size=8))
    assert (spec.name, spec.max_batch_size, spec.free_axes) == ("renamed", 8, {"x": {1: "length"}})
    assert {batch["x"].shape[1] for batch in spec.evaluation} == {6, 3}
    assert isinstance(spec.load_module(), OnnxOriginal)
    report = export(spec, tmp_path)
    manifest = report.variants[0].manifest
    assert manifest is not None
    assert "nothing here says that it equals the model it was made from" in manifest.notes[0]


def test_labels_make_the_task(onnx_file: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 4)).astype(np.float32)
    node = helper.make_node("Relu", ["x"], ["y"])
    save(graph([node], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])]), str(onnx_file))
    spec = load_source(str(onnx_file), Given(data=rows_file(tmp_path, x=x, labels=x.argmax(axis=1))))
    assert spec.task is not None
    run = original_runner(spec, spec.load_module())
    assert spec.task.fit([])([run(batch) for batch in spec.evaluation]).mean() > 0.9


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"z": vectors()}, r"has z, but no 'x'; it needs x \(float \[rows, any, 4\]\)"),
        ({"x": np.zeros((299, 2, 4), np.float32)}, "has 299 rows, too few: .* give at least 300"),
        ({"x": np.zeros((300, 2, 4), np.float32), "labels": np.zeros(5)}, "rows differ: x has 300, labels has 5"),
        ({"x": np.full((300, 2, 4), np.nan, np.float32)}, "x holds NaN or infinity; clean the data first"),
    ],
)
def test_what_data_lacks_is_named(onnx_file: Path, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_source(str(onnx_file), Given(data=rows_file(tmp_path, **arrays)))


def test_a_file_that_is_no_npz_is_named(onnx_file: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("1,2")
    with pytest.raises(SpecError, match=r"rows\.csv cannot be read .*numpy\.savez"):
        load_source(str(onnx_file), Given(data=tmp_path / "rows.csv"))


def test_an_onnx_file_with_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    save(graph([node], [("x", "FP32", [1, 4])], [("y", "FP32", [1, 4])]), str(tmp_path / "fixed.onnx"))
    with pytest.raises(SpecError, match="axis 0 of 'x' is 1, it must be free for the batch"):
        load_source(str(tmp_path / "fixed.onnx"))


def test_garbage_is_no_onnx_file(tmp_path: Path) -> None:
    (tmp_path / "no.onnx").write_bytes(b"\xff\xff")
    with pytest.raises(SpecError, match="cannot be read as an ONNX file"):
        load_source(str(tmp_path / "no.onnx"))


def test_a_spec_in_python_takes_no_options() -> None:
    with pytest.raises(SpecError, match=r"--data, --name: a spec in Python says this itself"):
        load_source("pilot_testing.specs:doubler_spec", Given(data=Path("x.npz"), name="n"))


def encoder_folder(folder: Path, architecture: str, **config: Any) -> Path:
    """A tiny BERT with random weights and a tokeniser of letters, as save_pretrained leaves them."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: index for index, word in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    settings = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        **config,
    )
    torch.manual_seed(0)
    getattr(transformers, architecture)(settings).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    lines = ["".join(random.choice(list("abcdefgh"), size=random.integers(3, 20))) for _ in range(320)]
    (tmp_path / "texts.txt").write_text("\n".join(lines))
    return tmp_path / "texts.txt"


@pytest.mark.parametrize(
    ("architecture", "output", "dims"),
    [
        pytest.param("BertModel", "sentence_embedding", (16,), marks=pytest.mark.slow),
        ("BertForSequenceClassification", "logits", (3,)),
        pytest.param("BertForTokenClassification", "logits", (-1, 3), marks=pytest.mark.slow),
    ],
)
def test_an_encoder_folder_is_exported_by_its_architecture(
    tmp_path: Path, texts: Path, architecture: str, output: str, dims: tuple[int, ...]
) -> None:
    from pilot_client.model_config import read

    labels = {} if architecture == "BertModel" else {"id2label": {0: "bad", 1: "good", 2: "unsure"}}
    folder = encoder_folder(tmp_path / "Tiny-BERT", architecture, **labels)
    spec = load_source(str(folder), Given(data=texts))
    report = export(spec, tmp_path, force=["fp32"])
    assert report.model == "tiny-bert"
    # Random weights are never confident, so a classifier's agreement says nothing; rounding is all that may differ.
    assert not [reason for reason in report.variants[0].reasons if "off by" in reason or "NaN" in reason]
    model_dir = tmp_path / "repository" / "tiny-bert"
    (tensor,) = read(model_dir).output
    assert (tensor.name, tuple(tensor.dims)) == (output, dims)
    assert (model_dir / "1" / "tokenizer.json").is_file()
    is_labelled = architecture == "BertForSequenceClassification"
    assert tensor.label_filename == ("labels.logits.txt" if is_labelled else "")


def _with(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(changes))
    (folder / "model.safetensors").touch()
    return folder


def test_what_a_folder_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text('{"architectures": ["BertModel"]}')
    for folder, message in (
        (tmp_path / "empty", r"has no config\.json"),
        (tmp_path / "pickled", r"has no \*\.safetensors: pickled weights .* run code"),
        (_with(tmp_path / "llm", architectures=["LlamaForCausalLM"]), "is a language model .*: tritonpilot export llm"),
        (_with(tmp_path / "gan", architectures=["UNet2D"]), "architecture UNet2D is no encoder task"),
        (_with(tmp_path / "no-tokenizer", architectures=["BertModel"]), r"has no tokenizer\.json"),
    ):
        with pytest.raises(SpecError, match=message):
            load_source(str(folder))


def sentence_folder(folder: Path, modules: list[str], pooling: dict[str, Any] | None = None) -> Path:
    """encoder_folder as sentence-transformers leaves it; `modules` are the classes behind the Transformer."""
    encoder_folder(folder, "BertModel")
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(modules, 1))]
    listed = [
        {"idx": index, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(zip(paths, ["Transformer", *modules], strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    modes = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


def test_a_sentence_folder_pools_and_normalises_as_its_modules_say(tmp_path: Path, texts: Path) -> None:
    ids = torch.tensor([[3, 4, 5, 0], [6, 7, 8, 9]])
    mask = (ids > 0).to(torch.int64)
    found = {}
    for name, modules, pooling in (
        ("bare", None, {}),
        ("mean", ["Pooling", "Normalize"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}),
        ("mean as it is", ["Pooling"], {"pooling_mode": "mean"}),
        ("first token", ["Pooling"], {"pooling_mode_cls_token": True}),
    ):
        folder = tmp_path / name
        if modules is None:
            encoder_folder(folder, "BertModel")
        else:
            sentence_folder(folder, modules, pooling)
        with torch.inference_mode():
            spec = load_source(str(folder), Given(data=texts))
            module: Any = spec.load_module()
            found[name] = module.eval()(ids, mask)
    longest = spec.edge_cases["the longest input (64 tokens)"]["input_ids"]
    assert longest.shape == (1, 64)
    assert len(set(longest[0].tolist())) > 5  # a text, not one word many times
    (measure,) = spec.extra_measures.values()
    outputs = [{"sentence_embedding": np.random.default_rng(0).normal(size=(400, 16))}]
    assert measure(outputs, [{"sentence_embedding": 3 * outputs[0]["sentence_embedding"]}]) == share(np.ones(214, bool))
    as_it_is, lengths = found["mean as it is"], found["mean as it is"].norm(dim=-1, keepdim=True)
    assert not torch.allclose(lengths, torch.ones_like(lengths))
    assert torch.equal(found["mean"], found["bare"])
    assert torch.allclose(found["mean"], as_it_is / lengths)
    assert not torch.allclose(found["first token"], as_it_is)


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (
            ["Pooling", "Dense", "Normalize"],
            None,
            r"modules\.json has a module Dense, export knows Transformer, Pooling,",
        ),
        (["Normalize"], None, r"modules\.json has Transformer, Normalize, it must be"),
        (["Pooling"], {"pooling_mode_max_tokens": True}, r"config\.json: pooling is max, mean or cls alone is known"),
        (
            ["Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            r"pooling is cls and mean, mean or cls alone",
        ),
        (["Pooling"], {}, r"pooling is not named"),
    ],
)
def test_an_embedding_that_export_would_get_wrong_is_refused(
    tmp_path: Path, modules: list[str], pooling: dict[str, Any] | None, message: str
) -> None:
    folder = sentence_folder(tmp_path / "tiny", modules, pooling)
    with pytest.raises(SpecError, match=message):
        load_source(str(folder))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", r"config\.json cannot be read as JSON"),
        ("config.json", "[]", r"config\.json holds a list, it must be a dict"),
        ("modules.json", "[{]", r"modules\.json cannot be read as JSON"),
        ("modules.json", '[{"idx": 0}]', r"modules\.json: a module has no type or no path: {'idx': 0}"),
        ("modules.json", None, r"has 1_Pooling, but no modules\.json that says how it is used"),
        ("1_Pooling/config.json", "nothing", r"1_Pooling/config\.json cannot be read as JSON"),
        ("1_Pooling/config.json", None, r"1_Pooling/config\.json cannot be read as JSON: .*No such file"),
        ("tokenizer.json", "{}", r"tokenizer\.json cannot be read as a tokenizer"),
    ],
)
def test_a_broken_file_of_a_folder_is_named(
    tmp_path: Path, texts: Path, file: str, text: str | None, message: str
) -> None:
    folder = sentence_folder(tmp_path / "tiny", ["Pooling"])
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(SpecError, match=message):
        load_source(str(folder), Given(data=texts))


def test_a_class_without_a_name_is_named(tmp_path: Path, texts: Path) -> None:
    folder = encoder_folder(tmp_path / "tiny", "BertForSequenceClassification", id2label={0: "bad", 1: "good"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "bad", "2": "good"}}))
    with pytest.raises(SpecError, match=r"config\.json: id2label has no name for class 1: give each class from 0 on"):
        load_source(str(folder), Given(data=texts))


def test_too_few_texts_are_named(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "tiny", "BertModel")
    (tmp_path / "few.txt").write_text("a\n\nb\n")
    with pytest.raises(SpecError, match=r"few\.txt has 2 texts \(one a line\), too few .* at least 300"):
        load_source(str(folder), Given(data=tmp_path / "few.txt"))
