"""What a policy trains over weights that never change, as all see it but its trainer and its engine."""


class Overlay:
    """What is trained over a model's own weights, which are its base.

    The trainer says what it is, and the engine adds it to the base. The code between them passes it on
    unread.
    """

    @property
    def travels(self) -> bool:
        """Whether a publication carries it alone, to engines that have the base; else both, merged."""
        raise NotImplementedError


def policy_tensor(policy: str, name: str) -> str:
    """The name under which a tensor of a policy's overlay is published; of the empty name, its own."""
    return f"{policy}:{name}" if policy else name


def policy_of(name: str) -> tuple[str, str]:
    """The inverse of `policy_tensor`: the policy and the tensor's own name."""
    policy, _, tensor = name.rpartition(":")
    return policy, tensor
