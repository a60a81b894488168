"""Notices when the process of a Python model dies, and brings that model back.

Server 2.51 goes on calling such a model ready, answers its new requests with an error and leaves its open streams
hanging. A dead stub stays a zombie child of the server until its model is unloaded; one that ends with an unload is
waited for at once, which is a moment. So a child that stays a zombie is a death, and nothing else is.

    running --death--> unload, load --ok--> running
                            |
                            +--failed, or the third death within a minute--> left unloaded: readiness tells the truth
"""

import time
from collections import defaultdict
from pathlib import Path

import psutil

from pilot_base.progress import Say, silent
from pilot_server import control
from pilot_server.errors import ServerError

INTERVAL_S = 0.5
_MAX_DEATHS = 3
_WINDOW_S = 60.0
_WAITED_FOR_WITHIN_S = 0.4


class StubWatch:
    """Looks after the stubs of one server. Call `look` every INTERVAL_S, from one thread.

    There is no event to wait for: the stubs are children of the server, not ours, and come and go with each load.
    """

    def __init__(self, server_pid: int, http_url: str, say: Say = silent, max_deaths: int = _MAX_DEATHS) -> None:
        self._server = psutil.Process(server_pid)
        self._repositories = _repositories(self._server)
        self._http_url = http_url
        self._say = say
        self._max_deaths = max_deaths
        self._model_by_pid: dict[int, str] = {}
        self._deaths_s: defaultdict[str, list[float]] = defaultdict(list)

    def look(self) -> list[str]:
        """Bring back the models whose stubs have died since the last look; returns their names."""
        try:
            children = self._server.children()
        except psutil.NoSuchProcess:
            return []
        zombies: list[psutil.Process] = []
        for child in children:
            try:
                if child.status() != psutil.STATUS_ZOMBIE:
                    self._remember(child)
                elif child.pid in self._model_by_pid:
                    zombies.append(child)
            except psutil.NoSuchProcess:
                continue
        left = _still_zombies(zombies)
        dead = list(dict.fromkeys(model for child in left if (model := self._model_by_pid.pop(child.pid, None))))
        for model in dead:
            self._bring_back(model)
        return dead

    def _remember(self, child: psutil.Process) -> None:
        if child.pid not in self._model_by_pid:
            model = model_of_stub(child.cmdline(), self._repositories)
            if model is not None:
                self._model_by_pid[child.pid] = model

    def _bring_back(self, model: str) -> None:
        deaths = self._deaths_s[model] = recent([*self._deaths_s[model], time.monotonic()])
        # The other stubs of the model end with it, and are no deaths.
        self._model_by_pid = {pid: name for pid, name in self._model_by_pid.items() if name != model}
        try:
            served = control.read_config(self._http_url, model)
            control.unload(self._http_url, model)
            if len(deaths) >= self._max_deaths:
                self._say(
                    f"Model {model}: its process died {len(deaths)} times within {_WINDOW_S:.0f} s. "
                    "It is left unloaded; see the server's log, mend it, and load it again"
                )
                return
            self._say(f"Model {model}: its process died; loading it again")
            control.load(self._http_url, model)
            if control.read_config(self._http_url, model) != served:
                # It was served with another configuration than its file's.
                control.load(self._http_url, model, served)
            self._say(f"Model {model}: ready again")
        except ServerError as error:
            self._say(f"Model {model}: its process died, and it could not be loaded again: {error}")


def _still_zombies(zombies: list[psutil.Process]) -> list[psutil.Process]:
    """Those that nobody waits for."""
    deadline_s = time.monotonic() + _WAITED_FOR_WITHIN_S
    while zombies and time.monotonic() < deadline_s:
        time.sleep(0.02)
        zombies = [child for child in zombies if _is_zombie(child)]
    return zombies


def _is_zombie(child: psutil.Process) -> bool:
    try:
        return bool(child.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def recent(times_s: list[float]) -> list[float]:
    """Those of the rising `times_s` that lie within the window that ends with the last."""
    return [time_s for time_s in times_s if times_s[-1] - time_s < _WINDOW_S]


def model_of_stub(command_line: list[str], repositories: list[Path]) -> str | None:
    """The model that a stub's command line names, None for any other process.

    stub REPOSITORY/MODEL/VERSION/model.py REGION 1048576 1048576 SERVER_PID BACKEND_FOLDER ...
    """
    if len(command_line) < 3 or Path(command_line[0]).name != "triton_python_backend_stub":
        return None
    for repository in repositories:
        if (model_file := Path(command_line[1])).is_relative_to(repository):
            return model_file.relative_to(repository).parts[0]
    return None


def _repositories(server: psutil.Process) -> list[Path]:
    option = "--model-repository="
    return [Path(word.removeprefix(option)) for word in server.cmdline() if word.startswith(option)]
