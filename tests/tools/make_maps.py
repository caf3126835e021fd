"""Write the packaged maps: `python tests/tools/make_maps.py FOLDER`.

OpenDRIVE's y axis points the other way than CARLA's; all coordinates here are OpenDRIVE's.
"""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

LANE_M = 3.5


@dataclass
class Stretch:
    """A part of a reference line whose curvature (1/m, left positive) changes evenly along it."""

    length: float
    start: float = 0.0
    end: float = 0.0


def straight(length):
    return [Stretch(length)]


def bend(degrees, radius, ease=0.0):
    """A bend, left positive, entered and left through clothoids of `ease` metres."""
    curvature = math.copysign(1 / radius, degrees)
    arc = math.radians(abs(degrees)) * radius - ease
    eased = [Stretch(ease, 0.0, curvature), Stretch(arc, curvature, curvature), Stretch(ease, curvature, 0.0)]
    return eased if ease else [Stretch(arc, curvature, curvature)]


@dataclass
class Road:
    id: int
    stretches: list
    lanes: list  # (lane number, type, mark, colour), the outermost first on the left, last on the right
    start: tuple  # x, y, heading
    centre: tuple = ("none", "white")
    before: tuple | None = None  # (element, id, contact point, {own lane: its lane})
    after: tuple | None = None
    hill_m: float = 0.0
    junction: int = -1
    end: tuple = field(init=False)

    def __post_init__(self):
        self.end = self.start
        for stretch in self.stretches:
            self.end = advance(self.end, stretch, stretch.length)

    @property
    def length(self):
        return sum(stretch.length for stretch in self.stretches)


def advance(pose, stretch, distance):
    """Return the pose after a distance along a stretch, by Simpson's rule on its heading."""
    x, y, heading = pose
    steps = 2000
    h = distance / steps

    def turned(s):
        return heading + stretch.start * s + (stretch.end - stretch.start) * s * s / (2 * stretch.length)

    for step in range(steps):
        low, mid, high = turned(step * h), turned((step + 0.5) * h), turned((step + 1) * h)
        x += h / 6 * (math.cos(low) + 4 * math.cos(mid) + math.cos(high))
        y += h / 6 * (math.sin(low) + 4 * math.sin(mid) + math.sin(high))
    return x, y, turned(distance)


def number(value):
    text = f"{value:.9f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def geometry(road):
    lines, pose, s = [], road.start, 0.0
    for part in road.stretches:
        shape = "<line/>"
        if part.start or part.end:
            shape = f'<arc curvature="{part.start:.12f}"/>'
            if part.start != part.end:
                shape = f'<spiral curvStart="{part.start:.12f}" curvEnd="{part.end:.12f}"/>'
        place = " ".join(f'{key}="{number(value)}"' for key, value in zip(("x", "y", "hdg"), pose, strict=True))
        lines.append(f'<geometry s="{number(s)}" {place} length="{number(part.length)}">{shape}</geometry>')
        pose, s = advance(pose, part, part.length), s + part.length
    return "".join(lines)


def elevation(road):
    if not road.hill_m:
        return '<elevation s="0" a="0" b="0" c="0" d="0"/>'
    half, rise = road.length / 2, road.hill_m
    c, d = 3 * rise / half**2, 2 * rise / half**3
    up = f'<elevation s="0" a="0" b="0" c="{c:.12f}" d="{-d:.12f}"/>'
    return up + f'<elevation s="{number(half)}" a="{number(rise)}" b="0" c="{-c:.12f}" d="{d:.12f}"/>'


def lane(road, entry):
    own, kind, mark, colour = entry
    links = ""
    for tag, link in (("predecessor", road.before), ("successor", road.after)):
        if link and own in link[3]:
            links += f'<{tag} id="{link[3][own]}"/>'
    return (
        f'<lane id="{own}" type="{kind}" level="false"><link>{links}</link>'
        f'<width sOffset="0" a="{LANE_M}" b="0" c="0" d="0"/>'
        f'<roadMark sOffset="0" type="{mark}" weight="standard" color="{colour}" width="0.15"/></lane>'
    )


def road_text(road):
    links = ""
    for tag, link in (("predecessor", road.before), ("successor", road.after)):
        if link:
            contact = f' contactPoint="{link[2]}"' if link[2] else ""
            links += f'<{tag} elementType="{link[0]}" elementId="{link[1]}"{contact}/>'
    left = "".join(lane(road, entry) for entry in road.lanes if entry[0] > 0)
    right = "".join(lane(road, entry) for entry in road.lanes if entry[0] < 0)
    mark, colour = road.centre
    return (
        f'<road name="Road {road.id}" length="{number(road.length)}" id="{road.id}" junction="{road.junction}">\n'
        f'<link>{links}</link><type s="0" type="town"/>\n<planView>{geometry(road)}</planView>\n'
        f"<elevationProfile>{elevation(road)}</elevationProfile><lateralProfile/>\n"
        f'<lanes><laneSection s="0">{f"<left>{left}</left>" if left else ""}'
        f'<center><lane id="0" type="none" level="false"><roadMark sOffset="0" type="{mark}" weight="standard" '
        f'color="{colour}" width="0.15"/></lane></center>\n<right>{right}</right></laneSection></lanes>\n</road>\n'
    )


def write(path, roads, junctions=()):
    text = '<?xml version="1.0" encoding="utf-8"?>\n<OpenDRIVE>\n'
    text += f'<header revMajor="1" revMinor="4" name="{path.stem}" version="1" north="0" south="0" east="0" west="0">'
    text += "<geoReference>+proj=tmerc +lat_0=0 +lon_0=0 +datum=WGS84</geoReference></header>\n"
    text += "".join(road_text(road) for road in sorted(roads, key=lambda road: road.id))
    path.write_text(text + "".join(junctions) + "</OpenDRIVE>\n", encoding="utf-8")


def highway(folder):
    """A loop of 2 x 4 lanes with bends and two hills; road 47 passes (5, 0) with its lane -1, heading for y."""
    left = [(7, "shoulder", "none", "white"), (6, "driving", "solid", "white")]
    left += [(number, "driving", "broken", "white") for number in (5, 4, 3)]
    left += [(2, "shoulder", "solid", "yellow"), (1, "shoulder", "none", "white")]
    right = [(-number, "driving", "broken", "white") for number in (1, 2, 3)]
    right += [(-4, "driving", "solid", "white"), (-5, "shoulder", "none", "white")]
    lanes = left + right
    # Turning by 180 degrees in all: the same again leads back to the start, whatever the parts are.
    half = [straight(120), straight(200), [*bend(-25, 250, 40), *bend(25, 250, 40)], straight(100), bend(180, 120, 60)]
    hills = {48: 6.0, 53: 9.0}
    same = {entry[0]: entry[0] for entry in lanes}
    roads, pose, ids = [], (5.0 - LANE_M / 2, -68.0, math.pi / 2), list(range(47, 47 + 2 * len(half)))
    for at, (road_id, stretches) in enumerate(zip(ids, half * 2, strict=True)):
        before = ("road", ids[at - 1], "end", same)
        after = ("road", ids[(at + 1) % len(ids)], "start", same)
        roads.append(Road(road_id, stretches, lanes, pose, ("solid", "yellow"), before, after, hills.get(road_id, 0.0)))
        pose = roads[-1].end
    write(folder / "HighwayLoop.xodr", roads)


def town(folder):
    """Streets in a grid, one lane each way, that meet in junctions and, at the corners, in bends."""
    reach = 12.0  # of a junction from its middle
    columns = [-13.47 - LANE_M / 2 + 90.0 * step for step in (-1, 0, 1, 2)]
    rows = [-180.0, -90.0, 0.0]
    nodes = {(i, j): (x, y) for i, x in enumerate(columns) for j, y in enumerate(rows)}
    both = [(1, "driving", "solid", "white"), (-1, "driving", "solid", "white")]
    arms: dict = {node: [] for node in nodes}  # (direction it leaves in, street, end of it that is here)
    streets = []
    for i, j in nodes:
        for di, dj, heading in ((1, 0, 0.0), (0, 1, math.pi / 2)):
            if (i + di, j + dj) in nodes:
                (x, y), (u, v) = nodes[i, j], nodes[i + di, j + dj]
                start = (x + reach * di, y + reach * dj, heading)
                street = Road(len(streets) + 1, straight(math.hypot(u - x, v - y) - 2 * reach), both, start)
                street.centre = ("broken", "yellow")
                streets.append(street)
                arms[i, j].append((heading, street, "start"))
                arms[i + di, j + dj].append((heading + math.pi, street, "end"))
    roads, junctions = list(streets), []
    for at, (node, here) in enumerate(arms.items()):
        (roads.append(corner(100 + at, nodes[node], here, reach, both))) if len(here) == 2 else junctions.append(
            crossing(200 + at, nodes[node], here, reach, roads)
        )
    write(folder / "SmallTown.xodr", roads, junctions)


def entering(arm, middle, reach):
    """Return the pose on the reference line from which an arm enters a junction."""
    direction = arm[0]
    return middle[0] + reach * math.cos(direction), middle[1] + reach * math.sin(direction), direction + math.pi


def turn_of(arm, other):
    """Return the degrees turned from one arm into another, left positive."""
    turned = math.degrees(other[0] - arm[0] - math.pi) % 360
    return round(turned - 360 if turned > 180 else turned)


def path(arm, other, reach):
    turned = turn_of(arm, other)
    return straight(2 * reach) if turned == 0 else bend(turned, reach)


def arriving(arm):
    """Return the lane of a street on which vehicles come to this end of it."""
    return -1 if arm[2] == "end" else 1


def attach(arm, link):
    setattr(arm[1], "after" if arm[2] == "end" else "before", link)


def corner(road_id, middle, here, reach, lanes):
    arm, other = here
    into, out = arriving(arm), -arriving(other)
    before = ("road", arm[1].id, arm[2], {-1: into, 1: -into})
    after = ("road", other[1].id, other[2], {-1: out, 1: -out})
    attach(arm, ("road", road_id, "start", {into: -1, -into: 1}))
    attach(other, ("road", road_id, "end", {out: -1, -out: 1}))
    stretches = path(arm, other, reach)
    return Road(road_id, stretches, lanes, entering(arm, middle, reach), ("broken", "yellow"), before, after)


def crossing(junction_id, middle, here, reach, roads):
    """Add the paths through a junction to the roads and return the junction's text."""
    text = f'<junction id="{junction_id}" name="junction {junction_id}">\n'
    connection = 0
    for arm in here:
        attach(arm, ("junction", junction_id, "", {}))
        for other in here:
            if other is arm:
                continue
            into, out = arriving(arm), -arriving(other)
            before = ("road", arm[1].id, arm[2], {-1: into})
            after = ("road", other[1].id, other[2], {-1: out})
            road = Road(junction_id * 100 + connection, path(arm, other, reach), [(-1, "driving", "none", "white")],
                        entering(arm, middle, reach), ("none", "white"), before, after, 0.0, junction_id)  # fmt: skip
            roads.append(road)
            text += (
                f'<connection id="{connection}" incomingRoad="{arm[1].id}" connectingRoad="{road.id}" '
                f'contactPoint="start"><laneLink from="{into}" to="-1"/></connection>\n'
            )
            connection += 1
    return text + "</junction>\n"


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "mcnn_ray/assets/maps")
    highway(target)
    town(target)
