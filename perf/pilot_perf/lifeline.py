"""What becomes of a study whose server dies: it goes on with another one, once, where there is one to be had."""

from collections.abc import Callable
from dataclasses import dataclass

from pilot_base.progress import Say
from pilot_client.errors import ClientError
from pilot_perf.bench import Bench
from pilot_perf.errors import PerfError
from pilot_perf.remote import server_version
from pilot_server.running import RunningServer


@dataclass
class Lifeline:
    """`restart` gives another server in the state of the first; None for a server that is not ours."""

    server: RunningServer
    bench: Bench
    restart: Callable[[], RunningServer] | None
    say: Say

    def revive(self) -> bool:
        """Called when a measurement brought nothing: whether the server had died and another one is there now.

        Raises:
            PerfError: the server is gone, and there is no other.
        """
        try:
            server_version(self.server.grpc_url)
        except ClientError as error:
            if self.restart is None:
                raise self._gone(error) from error
            self.say(f"The server has died; another one is started, this once. {_last_line(self.server)}".rstrip())
            restart, self.restart = self.restart, None
            self.server = restart()
            self.bench.move_to(self.server.grpc_url, self.server.pid)
            return True
        return False

    def _gone(self, error: ClientError) -> PerfError:
        log = self.server.log_tail()
        return PerfError(
            "the server is gone; what was measured is kept, and the same command goes on from there "
            f"({error})" + (f". Its log ends with:\n{log}" if log else "")
        )


def _last_line(server: RunningServer) -> str:
    lines = server.log_tail().splitlines()
    return f"Its log ends with: {lines[-1].strip()}" if lines else ""
