"""How each object of the kitchen is done: waypoints of the fingertips in the frame of the object's own site."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SKILLS", "Skill", "Waypoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waypoint:
    """A pose of the fingertips.

    Attributes:
        offset: (x, y, z) from the object's site, in metres, in the site's axes: it moves and turns with the object.
        steps: of the environment after which it is given up.
        grip: whether the fingers are closed.
        yaw: of the pointing direction, in radians to the left of straight ahead.
        pitch: the same, downwards.
        near: metres from the offset at which it is reached; None takes all its steps.
        until: the joint's distance from its rest at which it is reached instead: here the object moves.
        speed: over that of free motion; what is pushed hard is aimed far past.
    """

    offset: tuple[float, float, float]
    steps: int
    grip: bool = True
    yaw: float = 0.0
    pitch: float = 0.0
    near: float | None = 0.02
    until: float | None = None
    speed: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """How an object is done.

    Attributes:
        site: of the object.
        joint: index into qpos that tells how far the object is.
        rest: it starts from.
        done: distance from there at which it is left alone, well past what the environment counts.
        steps: that it usually takes, with the way there.
        hides: objects out of reach once it is done.
        ways: to do it, one of which is drawn; each a sequence of waypoints.
    """

    site: str
    joint: int
    rest: float = 0.0
    done: float
    steps: int
    hides: tuple[str, ...] = ()
    ways: tuple[tuple[Waypoint, ...], ...]


def _slide(height: float) -> tuple[Waypoint, ...]:
    """Push the handle from its left."""
    return (
        Waypoint(offset=(-0.08, -0.10, height), steps=55, near=0.05, pitch=0.2),
        Waypoint(offset=(-0.07, 0.02, height), steps=20, pitch=0.2),
        Waypoint(offset=(0.06, 0.02, height), steps=25, until=0.25, pitch=0.2),
    )


def _hinge(height: float) -> tuple[Waypoint, ...]:
    """Take the handle between the fingers and pull it round."""
    return (
        Waypoint(offset=(0.0, -0.10, height), steps=55, near=0.05, grip=False),
        Waypoint(offset=(0.0, 0.02, height), steps=20, grip=False),
        Waypoint(offset=(0.0, 0.02, height), steps=5, near=None),
        Waypoint(offset=(0.02, -0.04, height), steps=45, until=1.3, speed=0.5),
    )


def _microwave(
    yaw: float, closing: int, pulling: int, speed: float, around: tuple[float, float], inside_yaw: float
) -> tuple[Waypoint, ...]:
    """Pull by the handle, which slips out of the fingers, then push from inside the door's edge."""
    beside, behind = around
    return (
        Waypoint(offset=(0.0, -0.08, 0.04), steps=55, near=0.05, grip=False, yaw=yaw, pitch=0.9),
        Waypoint(offset=(0.0, 0.02, 0.0), steps=20, near=0.015, grip=False, yaw=yaw, pitch=0.9),
        Waypoint(offset=(0.0, 0.02, 0.0), steps=closing, near=None, yaw=yaw, pitch=0.9),
        Waypoint(offset=(0.0, -0.05, 0.0), steps=pulling, until=0.2, yaw=yaw, pitch=0.9, speed=speed),
        Waypoint(offset=(beside, -0.06, 0.0), steps=10, near=0.05, grip=False, yaw=inside_yaw, pitch=0.9),
        Waypoint(offset=(beside, behind, 0.0), steps=20, near=0.03, yaw=inside_yaw, pitch=0.9),
        Waypoint(offset=(0.0, 0.02, 0.0), steps=40, until=0.65, yaw=inside_yaw, pitch=0.9),
    )


def _light(
    beside: tuple[float, float, float], aim: tuple[float, float], pitch: float, speed: float
) -> tuple[Waypoint, ...]:
    """Push the switch to the left."""
    x, _, z = beside
    return (
        Waypoint(offset=(x, -0.10, z), steps=55, near=0.05, yaw=-0.2, pitch=pitch),
        Waypoint(offset=beside, steps=20, yaw=-0.2, pitch=pitch),
        Waypoint(offset=(*aim, z), steps=20, until=0.65, yaw=-0.2, pitch=pitch, speed=speed),
    )


def _kettle(side: float) -> tuple[Waypoint, ...]:
    """Push the kettle's foot ahead, a little off its middle."""
    return (
        Waypoint(offset=(side, -0.18, -0.15), steps=55, near=0.05, pitch=0.8),
        Waypoint(offset=(side, -0.05, -0.15), steps=40, until=0.22, pitch=0.8),
    )


def _knob(
    beside: tuple[float, float, float], aim: tuple[float, float, float], pitch: float, speed: float
) -> tuple[Waypoint, ...]:
    """Turn a knob by the upper half of its bar, which resists like honey: the aim lies far past it."""
    x, y, _ = beside
    return (
        Waypoint(offset=(x, y, 0.09), steps=55, near=0.03, pitch=pitch),
        Waypoint(offset=beside, steps=20, near=0.015, pitch=pitch),
        Waypoint(offset=aim, steps=30, until=0.9, pitch=pitch, speed=speed),
    )


SKILLS: dict[str, Skill] = {
    "microwave": Skill(
        site="microhandle_site",
        joint=22,
        done=0.65,
        steps=95,
        ways=(_microwave(0.59, closing=3, pulling=6, speed=1.18, around=(0.106, 0.081), inside_yaw=0.61),),
    ),
    "kettle": Skill(site="kettle_site", joint=24, rest=0.35, done=0.22, steps=43, ways=(_kettle(0.0), _kettle(-0.012))),
    "light switch": Skill(
        site="light_site",
        joint=17,
        done=0.65,
        steps=45,
        ways=(_light((0.062, 0.017, 0.013), (-0.150, 0.023), pitch=0.03, speed=1.7),),
    ),
    "slide cabinet": Skill(site="slide_site", joint=19, done=0.25, steps=50, ways=(_slide(-0.06), _slide(0.0))),
    "hinge cabinet": Skill(
        site="hinge_site2",
        joint=21,
        done=1.3,
        steps=67,
        hides=("slide cabinet", "bottom burner", "top burner"),
        ways=(_hinge(-0.06), _hinge(-0.09)),
    ),
    "bottom burner": Skill(
        site="knob2_site",
        joint=11,
        done=0.9,
        steps=50,
        ways=(_knob((-0.042, 0.033, -0.008), (0.105, 0.065, -0.022), pitch=0.23, speed=1.5),),
    ),
    "top burner": Skill(
        site="knob4_site",
        joint=15,
        done=0.9,
        steps=43,
        ways=(
            _knob((-0.051, 0.043, -0.009), (0.131, 0.070, -0.032), pitch=0.15, speed=1.6),
            _knob((-0.054, 0.037, 0.0), (0.128, 0.058, -0.037), pitch=0.14, speed=1.3),
        ),
    ),
}
