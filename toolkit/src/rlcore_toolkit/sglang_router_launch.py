"""Runs sglang-router: `python sglang_router_launch.py HOST PORT METRICS_PORT POLICY [divided]`, run by path.

Without the launcher's own command line, which takes the token as an argument for everyone to read and does
not know every policy. Health checks, retries and circuit breakers are rlcore's: the router has none.
"""

import os
import sys

SGLANG_ROUTERS = dict.fromkeys(
    ("cache_aware", "round_robin", "consistent_hashing"), "rlcore_toolkit.sglang_router:SglangRouter"
)
"""The POLICY that it can have, for `rlcore.EngineConfig.routers`."""
TOKEN_VARIABLE = "RLCORE_ENGINE_TOKEN"
DIVIDED = "divided"
"""Workers are for prefill or for decode."""


def main(host: str, port: str, metrics_port: str, policy: str, divided: str = "") -> None:
    """Serve until SIGTERM. Workers come later, by `POST /workers`."""
    from sglang_router.launch_router import launch_router
    from sglang_router.router_args import RouterArgs

    launch_router(
        RouterArgs(
            host=host,
            port=int(port),
            policy=policy,
            pd_disaggregation=divided == DIVIDED,
            api_key=os.environ.pop(TOKEN_VARIABLE, "") or None,
            prometheus_host=host,
            prometheus_port=int(metrics_port),
            disable_retries=True,
            disable_circuit_breaker=True,
            disable_health_check=True,
            request_timeout_secs=86_400,
            max_concurrent_requests=-1,
            log_level="warn",
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
