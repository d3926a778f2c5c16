"""Which snapshots a session keeps: the rule of spacing at every length, what never goes, what goes first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from fake_oracle import random_tokens

from ds4c_runtime.history import History, Prefix
from ds4c_runtime.snapshot import Snapshot, SnapshotOrigin
from ds4c_runtime.snapshot_ring import DENSE_TOKENS, LEFT_BEHIND, TURN_ENDS, Entry, SnapshotRing
from ds4c_runtime.transport import OnDevice

INTERVAL = 128
NUMBERS = itertools.count()
NO_HISTORY = Prefix((), History().prefix(0).tail)


def entry_at(
    position: int, origin: SnapshotOrigin = SnapshotOrigin.INTERVAL, history: Prefix = NO_HISTORY
) -> Entry:
    number = next(NUMBERS)
    return Entry(
        Snapshot(f"s{number}", position, 0, "", history, (), OnDevice(0, 64), origin, create_time=number)
    )


def extend(ring: SnapshotRing, start: int, end: int, interval: int = INTERVAL) -> None:
    """What a step over `[start, end)` takes, and what then goes."""
    for position in range((start // interval + 1) * interval, end + 1, interval):
        ring.add(entry_at(position))
        thin(ring, end)


def thin(ring: SnapshotRing, position: int) -> list[Entry]:
    found = ring.surplus(position)
    for entry in found:
        ring.remove(entry)
    return found


def worst(ring: SnapshotRing, position: int) -> list[tuple[int, int]]:
    """Distance and replay of the worst target of each gap: the one just below the next snapshot."""
    edges = [0, *(e.position for e in ring.branch)]
    tops = [*(e.position - 1 for e in ring.branch), position]
    return [(position - top, top - low) for low, top in zip(edges, tops, strict=True)]


def check_rule(ring: SnapshotRing, position: int, interval: int = INTERVAL) -> None:
    for distance, replay in worst(ring, position):
        assert 8 * replay <= max(8 * (interval - 1), distance), (position, distance, replay)


def most_entries(length: int, interval: int = INTERVAL) -> int:
    """Dense ones, and two for each factor of 8/7 before: what the default budget has room for."""
    dense = min(length, DENSE_TOKENS) // interval + 1
    return dense + int(2 / math.log(8 / 7) * math.log(max(1.0, length / DENSE_TOKENS))) + 2


@pytest.mark.parametrize("chunk", [1, 37, 128, 500, 2_048])
def test_replay_is_bounded_at_every_length(chunk: int) -> None:
    """Up to 200,000 tokens; steps of any size, also at lengths between two snapshots."""
    length = 12_000 if chunk == 1 else 200_000
    ring, position = SnapshotRing(INTERVAL), 0
    while position < length:
        extend(ring, position, position + chunk)
        position += chunk
        if chunk > 1 or position % 101 == 0 or position % INTERVAL in (0, 1, 127):
            check_rule(ring, position)
            assert len(ring) <= most_entries(position), position


@pytest.mark.parametrize("seed", range(6))
def test_replay_is_bounded_with_turn_ends_and_client_snapshots_in_between(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ring, position = SnapshotRing(INTERVAL), 0
    origins = (SnapshotOrigin.TURN_END, SnapshotOrigin.PROMPT_END, SnapshotOrigin.CLIENT)
    while position < 60_000:
        start, position = position, position + int(rng.integers(1, 300))
        extend(ring, start, position)
        check_rule(ring, position)
        if rng.random() < 0.4 and ring.at(position) is None:
            ring.add(entry_at(position, origins[rng.integers(3)]))
            thin(ring, position)
            check_rule(ring, position)
        assert len(ring) <= 2 * most_entries(position) + TURN_ENDS


def test_every_target_is_within_the_bound() -> None:
    """By brute force: no target of a session of 30,000 tokens costs more."""
    ring = SnapshotRing(INTERVAL)
    extend(ring, 0, 30_000)
    for to in range(30_001):
        base = ring.base(to)
        assert to - (base.position if base else 0) <= max(127, (30_000 - to) / 8)


@pytest.mark.parametrize("interval", [32, 128, 256])
def test_the_last_tokens_are_dense_and_the_rest_is_geometric(interval: int) -> None:
    ring = SnapshotRing(interval)
    for start in range(0, 100_000, 1_000):
        extend(ring, start, start + 1_000, interval)
    positions = [e.position for e in ring.branch]
    dense = [p for p in positions if p > 100_000 - DENSE_TOKENS]
    assert dense == [p for p in range(0, 100_001, interval) if p > 100_000 - DENSE_TOKENS]
    gaps = np.diff([p for p in positions if p < 100_000 - DENSE_TOKENS])
    assert gaps.max() > 4 * interval
    assert gaps[0] > 3 * gaps[-1]
    check_rule(ring, 100_000, interval)


# ---------------------------------------------------------------- exactly what is kept, no more and no less

DENSE = 8_192


def needed(held: Sequence[int], position: int, interval: int = INTERVAL) -> list[int]:
    """What the rule keeps of some positions, by its words: all in the dense part, few before it.

    From the top: the newest stays, and one below goes if the last target above it, one token below what
    stays, replays at most an eighth of its distance from the one below.
    """
    kept = [held[-1]]
    for below, here in reversed(list(itertools.pairwise([0, *held[:-1]]))):
        target = kept[0] - 1
        distance, replay = position - target, target - below
        if replay >= interval and not (distance > DENSE and 8 * replay <= distance):
            kept.insert(0, here)
    return kept


def test_what_is_kept_of_20479_tokens() -> None:
    """By hand. The target 12,287 is 8,192 back, still dense: 12,160 stays, which is 8,320 back from its last.

    From there gaps are multiples of 128 whose replay, one less, is at most an eighth: 8 x 128 for 8,320 / 8 =
    1,040, then 9 for 1,168, 10 for 1,312, 11 for 1,472, 12, 14, 16, and from 1,920 an eighth reaches to 0.
    """
    ring = SnapshotRing(INTERVAL)
    for position in range(128, 20_480, 128):
        ring.add(entry_at(position))
    thin(ring, 20_479)
    sparse = [1_920, 3_968, 5_760, 7_296, 8_704, 9_984, 11_136]
    assert [p for p in range(20_480) if ring.at(p)] == [*sparse, *range(12_160, 20_480, 128)]


@pytest.mark.parametrize("interval", [32, 128, 256])
def test_nothing_is_kept_that_the_rule_does_not_need(interval: int) -> None:
    """Lengths of every remainder: of an eighth, of the interval, and on both sides of the dense border."""
    for position in range(20_000, 20_000 + 2 * interval + 9, 1 if interval < 256 else 7):
        held = list(range(interval, position + 1, interval))
        ring = SnapshotRing(interval)
        for at in held:
            ring.add(entry_at(at))
        thin(ring, position)
        assert [p for p in held if ring.at(p)] == needed(held, position, interval), position


@pytest.mark.parametrize("chunk", [37, 500, 2_048])
def test_a_session_that_grows_keeps_what_the_rule_needs_of_what_it_had(chunk: int) -> None:
    ring, held = SnapshotRing(INTERVAL), list[int]()
    for end in range(chunk, 40_000, chunk):
        extend(ring, end - chunk, end)
        for position in range(((end - chunk) // INTERVAL + 1) * INTERVAL, end + 1, INTERVAL):
            held = needed([*held, position], end)
        assert len(ring) == len(held)
        assert all(ring.at(p) for p in held), end


def test_of_turn_ends_the_last_eight_stay_and_no_more() -> None:
    """Twelve within one interval, where the spacing needs none of them."""
    ring = SnapshotRing(INTERVAL)
    for position in range(10, 130, 10):
        ring.add(entry_at(position, SnapshotOrigin.TURN_END))
        thin(ring, position)
    assert [p for p in range(130) if ring.at(p)] == list(range(50, 130, 10))


@pytest.mark.parametrize(("second", "first_goes"), [(127, True), (128, True), (129, False)])
def test_the_first_snapshot_stands_after_position_0(second: int, first_goes: bool) -> None:
    """Without the one at 64, the worst target is the one below the second: 127 tokens may be replayed."""
    ring, first = SnapshotRing(INTERVAL), entry_at(64)
    ring.add(first)
    ring.add(entry_at(second))
    assert ring.surplus(second) == ([first] if first_goes else [])


@pytest.mark.parametrize(("third", "goes"), [(139, 100), (140, 40), (141, 40)])
def test_the_one_with_the_smallest_gap_goes_first(third: int, goes: int) -> None:
    """Without 40 the gap is [0, 100), without 100 it is [40, third); of equal ones the first goes."""
    ring = SnapshotRing(INTERVAL)
    for position in (40, 100, third):
        ring.add(entry_at(position))
    cheapest = ring.cheapest(300)
    assert cheapest is not None
    assert cheapest.position == goes


def test_the_start_of_the_last_draft_stays() -> None:
    """Its end is at an interval, which by spacing alone would push out the start."""
    ring = SnapshotRing(INTERVAL)
    older, start = (entry_at(p, SnapshotOrigin.BEFORE_DRAFT) for p in (150, 200))
    for entry in (entry_at(128), older, start, entry_at(256)):
        ring.add(entry)
    assert ring.surplus(256) == [older]


def test_ends_of_the_last_turns_stay() -> None:
    ring, ends = SnapshotRing(INTERVAL), []
    position = 0
    for turn in range(30):
        start, position = position, position + 61
        extend(ring, start, position)
        origin = SnapshotOrigin.PROMPT_END if turn % 2 else SnapshotOrigin.TURN_END
        if ring.at(position) is None:
            ring.add(entry_at(position, origin))
            ends.append(position)
            thin(ring, position)
        kept = [e.position for e in ring.branch if e.snapshot.origin is not SnapshotOrigin.INTERVAL]
        assert set(ends[-TURN_ENDS:]) <= set(kept)
    check_rule(ring, position)


def test_pinned_snapshots_are_never_surplus_and_never_given_up() -> None:
    ring, pinned = SnapshotRing(INTERVAL), []
    for position in range(50, 5_000, 50):
        entry = entry_at(position, SnapshotOrigin.CLIENT)
        entry.is_pinned = position % 450 == 0
        ring.add(entry)
        if entry.is_pinned:
            pinned.append(entry)
        thin(ring, position)
    ring.leave(4_000)
    assert ring.has_pinned
    while (victim := ring.cheapest(4_000)) is not None:
        assert not victim.is_pinned
        ring.remove(victim)
    assert sorted([*ring.branch, *ring.left], key=lambda e: e.position) == pinned


def test_what_was_left_goes_first_and_its_end_last() -> None:
    ring = SnapshotRing(INTERVAL)
    extend(ring, 0, 12 * 128)
    ring.leave(10 * 128)
    assert [e.position for e in ring.left] == [11 * 128, 12 * 128]
    order = [ring.cheapest(10 * 128)]
    assert order[0] is ring.left[0]
    ring.remove(ring.left[0])
    assert ring.cheapest(10 * 128) is ring.left[0]
    ring.remove(ring.left[0])
    assert ring.cheapest(10 * 128) in ring.branch


def test_only_some_of_what_was_left_stays() -> None:
    ring = SnapshotRing(INTERVAL)
    for round_ in range(5):
        extend(ring, 0, 5 * 128)
        if round_ == 0:
            ring.branch[3].is_pinned = True
        ring.leave(0)
    before = list(ring.left)
    gone = thin(ring, 0)
    unpinned = [e for e in before if not e.is_pinned]
    assert (gone, len(unpinned) > LEFT_BEHIND) == (unpinned[:-LEFT_BEHIND], True)
    assert sum(e.is_pinned for e in ring.left) == 1


@pytest.mark.parametrize("keep", [4, 8, 16])
def test_with_few_bytes_the_far_past_becomes_coarse_first(keep: int) -> None:
    """`cheapest` until `keep` are left: near targets cost less than far ones, and gaps stay in proportion."""
    ring = SnapshotRing(INTERVAL)
    extend(ring, 0, 16_384)
    while len(ring) > keep:
        victim = ring.cheapest(16_384)
        assert victim is not None
        ring.remove(victim)
    found = worst(ring, 16_384)
    replays = [replay for _, replay in found]
    assert replays[-2] <= min(replays[:-2]), "the newest gap is the smallest"
    assert max(replays) <= 2 * 16_384 * (1 - 0.5 ** (1 / 2) if keep >= 8 else 1)


def test_a_long_generation_under_a_budget_stays_near_the_rule() -> None:
    """One entry goes for each that comes: the bound grows with the shortage and not with the length."""
    ring, ratios = SnapshotRing(INTERVAL), []
    for position in range(128, 100_000, 128):
        while len(ring) >= 40:
            victim = ring.cheapest(position)
            assert victim is not None
            ring.remove(victim)
        ring.add(entry_at(position))
        thin(ring, position)
        ratios.append(max(r / max(127, d / 8) for d, r in worst(ring, position)))
    assert max(ratios) < 4


def test_base_and_at() -> None:
    ring = SnapshotRing(INTERVAL)
    assert ring.base(1_000) is ring.at(128) is None
    extend(ring, 0, 400)
    assert [p for p in range(400) if ring.at(p)] == [128, 256, 384]
    assert [(e.position if (e := ring.base(p)) else None) for p in (127, 128, 255, 256, 999)] == [
        None, 128, 128, 256, 384,
    ]  # fmt: skip
    ring.add(entry_at(200))
    assert [e.position for e in ring.branch] == [128, 200, 256, 384]
    assert [e.position for e in ring.entries] == [128, 200, 256, 384]


def with_history(tokens: Sequence[int]) -> Entry:
    return entry_at(len(tokens), SnapshotOrigin.CLIENT, History("", tokens).prefix(len(tokens)))


def test_branches_are_told_by_their_tokens() -> None:
    one, other = random_tokens(40, 1), random_tokens(40, 2)
    mixed = [*one[:20], *other[20:]]
    entries = [with_history(t) for t in (one[:10], one[:30], mixed[:25], mixed[:40], other[:5])]
    ring = SnapshotRing(INTERVAL)
    ring.left = list(entries)
    ring.sort_by(History("", mixed))
    assert ring.branch == [entries[0], entries[2], entries[3]]
    assert set(map(id, ring.left)) == {id(entries[1]), id(entries[4])}
    ring.sort_by(History("", one))
    assert ring.branch == [entries[0], entries[1]]
    ring.sort_by(History("", one[:9]))
    assert ring.branch == []
    assert len(ring) == 5
    assert ring.find(entries[4].snapshot.snapshot_id) is entries[4]
    assert ring.find("s-none") is None


def test_what_others_see() -> None:
    entry = with_history([1, 2, 3])
    entry.is_pinned, entry.label = True, "here"
    info = entry.info()
    assert (info.position, info.bytes, info.is_pinned, info.label) == (3, 64, True, "here")
    assert (info.has_logits, info.on_device, info.origin) == (True, True, SnapshotOrigin.CLIENT)
