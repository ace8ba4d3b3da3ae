#!/usr/bin/env python3
"""Draws docs/pictures/rooms.svg from the sources: the rooms, and an arrow from each to the rooms it includes. An arrow that
follows from others is left out.

usage: draw_rooms.py
"""
import pathlib

import check_includes as rules

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Folder, left edge, title and colour; rooms outside these are in the middle.
HOUSES = [("launcher/", 20, "launcher/: ddprun", "#dbe9ff"), ("worker/ddprun/", 290, "worker/ddprun/: the library", "#dff3e0"),
          ("worker/sam/", 1048, "", "#ffeed6"), ("worker/", 924, "worker/: the program", "#ffeed6")]
WIDTH, HEIGHT, STEP, GAP = 112, 28, 56, 12  # of a box; from row to row; between boxes


def included():
    """Each room and the rooms that its files include, as far as the order allows."""
    edges = {room: set() for room in rules.ORDER}
    for area in rules.ROOMS:
        for path in (ROOT / area).rglob("*"):
            if path.suffix not in (".h", ".cpp"):
                continue
            room = rules.room_of(str(path.relative_to(ROOT)))
            files = filter(None, (rules.target_of(*include) for include in rules.INCLUDE.findall(path.read_text())))
            if room in edges:
                edges[room] |= {r for r in map(rules.room_of, files) if r in edges and rules.ORDER[r] < rules.ORDER[room]}
    return edges


def reachable(edges, room):
    return set().union(*({target} | reachable(edges, target) for target in edges[room]))


def reduced(edges):
    """Drops arrows that follow from others."""
    return {room: {t for t in targets if not any(t in reachable(edges, other) for other in targets - {t})}
            for room, targets in edges.items()}


def row_of(edges, room):
    return max([row_of(edges, target) + 1 for target in edges[room]], default=0)


def house_of(room):
    return max((house for house in HOUSES if (room + "/").startswith(house[0])), key=lambda house: len(house[0]), default=None)


def places(edges):
    """Each room and the middle of its box: from the bottom up, a row for each step away from common, one for common/settings."""
    rows = {room: row_of(edges, room) + (house_of(room) is not None) for room in edges}
    bottom = 60 + max(rows.values()) * STEP
    taken, place = {}, {}
    for room in edges:
        house = house_of(room)
        left = house[1] if house else 538 if rows[room] < 2 else 790
        column = taken.get((house, rows[room]), 0)
        taken[house, rows[room]] = column + 1
        place[room] = (left + WIDTH / 2 + column * (WIDTH + GAP), bottom - rows[room] * STEP)
    return place, bottom + 40


def name_of(room):
    if room in ("launcher", "worker"):
        return "main"
    return room.removeprefix("launcher/").removeprefix("worker/").removeprefix("ddprun/")


def drawing(edges):
    place, height = places(edges)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1180 {height}" font-family="sans-serif" font-size="12">',
             '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
             '<path d="M0,0L8,4L0,8z" fill="#667"/></marker></defs>', f'<rect width="1180" height="{height}" fill="#fff"/>']
    for room, targets in edges.items():
        for target in sorted(targets):
            (x1, y1), (x2, y2) = place[room], place[target]
            parts.append(f'<path d="M{x1:.0f},{y1 + HEIGHT / 2:.0f}L{x2:.0f},{y2 - HEIGHT / 2:.0f}" stroke="#99a" fill="none" '
                         'marker-end="url(#tip)"/>')
    for room, (x, y) in place.items():
        house = house_of(room)
        fill = house[3] if house else "#eee"
        parts.append(f'<rect x="{x - WIDTH / 2:.0f}" y="{y - HEIGHT / 2:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
                     f'fill="{fill}" stroke="#889"/>'
                     f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{name_of(room)}</text>')
    for _, left, title, _ in HOUSES:
        parts.append(f'<text x="{left}" y="24" font-weight="bold" font-size="14">{title}</text>')
    return "\n".join(parts + ["</svg>\n"])


if __name__ == "__main__":
    (ROOT / "docs/pictures/rooms.svg").write_text(drawing(reduced(included())))
