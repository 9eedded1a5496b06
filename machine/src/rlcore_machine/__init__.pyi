"""What this package offers: every name, and where it is defined."""

from .attributes import (
    attribute_fault as attribute_fault,
)
from .entry_points import (
    EntryPoint as EntryPoint,
    entry_points as entry_points,
)
from .fork_server import (
    Forked as Forked,
    ForkServer as ForkServer,
    name_process as name_process,
)
from .heap import (
    defer_collection as defer_collection,
    deferred_collection as deferred_collection,
    keep_memory as keep_memory,
    settle_heap as settle_heap,
    used_host_memory as used_host_memory,
)
from .network import (
    LOOPBACK as LOOPBACK,
    HeldPort as HeldPort,
    free_port as free_port,
    listen as listen,
)
from .server_process import (
    ServerProcess as ServerProcess,
)
from .signals import (
    Terminated as Terminated,
    end_process as end_process,
)
from .tasks import (
    end_tasks as end_tasks,
    together as together,
)
from .threads import (
    compute_threads as compute_threads,
    switch_threads_often as switch_threads_often,
    when_slow as when_slow,
)
