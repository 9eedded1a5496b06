"""Programs that nobody trusts, isolated from the machine."""

from rlcore_sandbox.sandbox import ProgramEnd, Sandbox, SandboxError, SandboxLimits

__all__ = ["ProgramEnd", "Sandbox", "SandboxError", "SandboxLimits"]
