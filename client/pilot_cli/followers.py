"""Models that go on with an earlier version of one that has just changed; see pilot_check.borrowed."""

from pathlib import Path

from pilot_client.errors import ConfigError


def left_behind(repository: Path, model: str) -> list[str]:
    """A line for each model in `repository` that opens files of a version of `model` which is not its latest."""
    from pilot_check.borrowed import borrowed_files
    from pilot_client.model_config import CONFIG_FILE, latest_version_dir, read

    latest = latest_version_dir(repository / model).name
    lines = []
    for path in sorted(repository.glob(f"*/{CONFIG_FILE}")):
        try:
            found = {item.version for item in borrowed_files(read(path.parent)) if item.model == model}
        except ConfigError:
            continue  # `tritonpilot check` says what is wrong with it.
        lines += [
            f"{path.parent.name} still opens version {version}: write {latest} for it in {path}, and load it again"
            for version in sorted(found)
            if str(version) != latest
        ]
    return lines
