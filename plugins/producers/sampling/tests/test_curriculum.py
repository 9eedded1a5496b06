"""A run on a mix with a curriculum: what is scored counts, dropped groups too, and it resumes."""

import json
from typing import Any

from rollout_world import World

from rlcore import Group, Portion, Prompt, SourceMix, Verdict


class DropAll:
    def judge(self, group: Group) -> Verdict:
        return Verdict(group=None, reason="never")


def prompts(name: str, count: int) -> list[Prompt]:
    return [Prompt(prompt_id=f"{name}/row-{i}", text=f"{i:03d}", label="") for i in range(count)]


def mix() -> SourceMix:
    portions = [("a", 3.0, 9), ("b", 1.0, 6)]
    return SourceMix(
        [Portion(name=name, weight=w, prompts=prompts(name, count)) for name, w, count in portions]
    )


def world_of_mix(**options: Any) -> Any:
    """A digit of at least 5 at the end solves a prompt."""
    settings: dict[str, Any] = {"curriculum": True, "curriculum_solved_at": 0.5, "curriculum_floor": 0.2}
    world = World(**settings, **options)
    world.options["prompts"] = mix()
    world.producer = world.new_producer()
    return world


def rates(world: Any) -> dict[str, float]:
    parts = world.producer.state()["cursor"]["parts"]
    return {name: rate for part in parts.values() for name, rate in part["rates"].items()}


async def test_success_is_the_share_of_answers_that_solve() -> None:
    world = world_of_mix()
    rollout = await world.producer.rollout(1)
    expected = {
        group.prompt.prompt_id: sum(int(sample.text[-1]) >= 5 for sample in group.samples) / 3
        for group in rollout.groups
    }
    assert rates(world) == expected
    assert sorted(name[0] for name in expected) == ["a", "a", "a", "b"]
    assert {"rollout/epoch", "rollout/epoch/a", "rollout/epoch/b", "rollout/prompts_skipped"} <= set(
        rollout.metrics
    )


async def test_dropped_groups_count_too() -> None:
    world = world_of_mix(filters=[DropAll()], max_refills=0)
    await world.producer.rollout(1)
    assert len(rates(world)) == 4


async def test_a_killed_run_goes_on_as_if_nothing_had_happened() -> None:
    steady, broken = world_of_mix(), world_of_mix()
    for step in range(1, 16):
        rollout = await steady.producer.rollout(step)
        if step % 4 == 0:
            state = json.loads(json.dumps(broken.producer.state()))
            broken.producer = broken.new_producer()
            broken.producer.load(state)
        assert (await broken.producer.rollout(step)).groups == rollout.groups
    assert rollout.metrics["rollout/prompts_skipped"] > 0
