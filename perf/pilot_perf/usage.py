"""What the processes of a measurement used of the machine while its windows ran."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """Means over the run, memory as the most that was seen. None: not known (another machine's server, no GPU)."""

    # Cores kept busy by the server with all its model processes, and by the client.
    server_cpu_cores: float | None = None
    client_cpu_cores: float | None = None
    # All of the machine, whoever used them: the two above, and what neither of them is. A container sees its host.
    machine_cpu_cores: float | None = None
    # Proportional set size of the server with all its model processes: shared pages count once.
    server_memory_bytes: int | None = None
    # Share of the time in which a kernel ran, mean over the GPUs; the most memory in use and the power of all of them.
    gpu_busy: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_power_w: float | None = None
    # How many cores `machine_cpu_cores` is of: more than this process may use, in a container smaller than its host.
    machine_cpus: int | None = None
