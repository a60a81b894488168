"""The sample model, exported once for as long as the code that exports it does not change."""

import hashlib
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pilot_export
from pilot_base.packages import cache_dir
from pilot_export.manifest import library_versions
from pilot_server import model_repository_dir
from pilot_testing.made_once import one_process_at_a_time

# Modules of the export that only serve other models.
_OTHER_MODELS = ("llm", "gguf", "crepe", "tones", "efficientnet", "photos", "answers", "nearest")
_KEEP_S = 7 * 24 * 3600


def exported_minilm() -> Path:
    """A folder with `model_repository/` (the committed one, and minilm exported into it) and `build/` (its report).

    It lies in the cache under a key of the exporting code, the configuration and the libraries, so that only the
    first run after a change pays the minutes. Read only: copy what a test changes.
    """
    with one_process_at_a_time("minilm"):
        return _exported(cache_dir() / "test-exports")


def _exported(root: Path) -> Path:
    done = root / f"minilm-{_key()}"
    if done.is_dir():
        return done
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob("minilm-*"):
        if time.time() - old.stat().st_mtime > _KEEP_S:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".minilm-") as name:
        room = Path(name) / "made"
        repository = room / "model_repository"
        shutil.copytree(model_repository_dir() / "minilm", repository / "minilm")
        pilot_export.export_model(pilot_export.load_spec("minilm"), repository, build_dir=room / "build")
        room.rename(done)
    return done


def export_report(exported: Path) -> dict[str, Any]:
    """report.json of the export."""
    report: dict[str, Any] = json.loads((exported / "build" / "report.json").read_text())
    return report


def _key() -> str:
    digest = hashlib.sha256(json.dumps(library_versions()).encode())
    modules = sorted(Path(pilot_export.__file__).parent.rglob("*.py"))
    sources = [path for path in modules if not path.name.startswith(_OTHER_MODELS)]
    for path in [*sources, model_repository_dir() / "minilm" / "config.pbtxt"]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
