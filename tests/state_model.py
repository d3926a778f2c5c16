"""What sessions on a machine must do, said a second time: no line here comes from the runtime or asks it.

- A session has its history, of which `evaluated` tokens are in the state; it is valid if that is all of them.
- Rings hold the rows of `horizon` tokens below `high_water`, one past the highest row ever written, and
  nothing from before `floor`, where a snapshot or a fork filled them. A rewind is in place from
  `max(floor, high_water - horizon)` on, and to 0. Else the highest snapshot on the branch at or below the
  target is put back and the rest is replayed; without one, all is rebuilt.
- Steps leave a snapshot at every multiple of a page. One that is neither the highest, nor pinned, nor one of
  the last 8 ends of turns or the last start of a draft goes if without it no target costs more than a page
  less one of replay, or an eighth of its distance where that is above 8,192. 8 unpinned ones of branches
  that were left stay.
- A session holds `ceil(evaluated / page_tokens)` pages, a snapshot those of its tokens. A page that somebody
  else holds is copied before it is written. A write is refused only if the pages would not suffice with all
  unpinned snapshots given up; each of those may go when pages or bytes are short, which the model is told.

A method changes the model as the machine must change, and returns what that must report, or raises `Refused`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from session_model import Held, Listed, Plan, Reach, SessionModel, Shot

Reason = Literal["position", "replay", "pages", "slots", "stale"]
DENSE_TOKENS, SHARE = 8192, 8
"""Snapshots are a page apart over so many last tokens, and this fraction of the distance before."""
TURN_ENDS = LEFT_BEHIND = 8
_NUMBERS = itertools.count()
"""Ranks of snapshots in time, over all machines: sessions move between them."""
TURNS = ("prompt_end", "turn_end", "tool_boundary")


class Refused(Exception):
    """What the machine must refuse, without any change."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


@dataclass(eq=False)
class StateModel:
    """All sessions of a machine. Counts in tokens, but for slots, pages and snapshots.

    `surely` is how many snapshots a session and the machine have room for whatever their sizes.
    """

    horizon: int
    page_tokens: int
    max_rows: int
    max_logit_rows: int
    slots: int
    page_count: int
    surely: tuple[int, int]
    sessions: list[SessionModel] = field(default_factory=list[SessionModel])
    pressed: bool = False
    """Since the last listing something was short, so that snapshots may have gone."""
    _page_ids: itertools.count[int] = field(default_factory=itertools.count)

    # ------------------------------------------------------------------------------ pages and snapshots

    def shots(self) -> set[Shot]:
        return {h.shot for s in self.sessions for h in s.held}

    def references(self) -> dict[int, int]:
        """How many sessions and snapshots hold each page."""
        found: dict[int, int] = {}
        for pages in (*(s.pages for s in self.sessions), *(shot.pages for shot in self.shots())):
            for page in pages:
                found[page] = found.get(page, 0) + 1
        return found

    def _staying(self, session: SessionModel) -> set[int]:
        """Pages that a session cannot get: of others, and of snapshots that somebody has pinned."""
        pinned = [h.shot.pages for s in self.sessions for h in s.held if h.pinned]
        return {
            p for pages in (*(s.pages for s in self.sessions if s is not session), *pinned) for p in pages
        }

    def _fits(self, s: SessionModel, start: int, end: int) -> bool:
        """Whether tokens `[start, end)` can be written with every unpinned snapshot given up."""
        first, last = start // self.page_tokens, -(-end // self.page_tokens)
        staying = self._staying(s)
        copies = sum(page in staying for page in s.pages[first:last])
        wanted = copies + max(0, last - len(s.pages))
        return wanted <= self.page_count - len(staying.union(s.pages))

    def _fits_anew(self, s: SessionModel, base: Held | None, end: int) -> bool:
        """The same of a session that gives up its state and begins from a snapshot, or from nothing."""
        attached = () if base is None else base.shot.pages
        shared = 0 if base is None else base.position // self.page_tokens
        free = self.page_count - len(self._staying(s).union(attached))
        return -(-end // self.page_tokens) - shared <= free

    def _write(self, s: SessionModel, start: int, end: int) -> None:
        if not self._fits(s, start, end):
            raise Refused("pages")
        last, references = -(-end // self.page_tokens), self.references()
        for index in range(start // self.page_tokens, min(last, len(s.pages))):
            if references[s.pages[index]] > 1:
                s.pages[index] = next(self._page_ids)
        s.pages += [next(self._page_ids) for _ in range(last - len(s.pages))]
        self.pressed |= len(self.references()) > self.page_count

    def _keep(self, s: SessionModel, position: int, origin: str) -> Held:
        pages = tuple(s.pages[: -(-position // self.page_tokens)])
        held = Held(Shot(s.tokens[:position], pages, origin, next(_NUMBERS)))
        s.add(held)
        self._count(s)
        self._thin(s)
        return held

    def _count(self, s: SessionModel) -> None:
        self.pressed |= len(s.held) > self.surely[0] or len(self.shots()) > self.surely[1]

    def _thin(self, s: SessionModel) -> None:
        """Give up what the rule of spacing does not keep, from the highest down."""
        turns = [h for h in s.branch if h.shot.origin in TURNS][-TURN_ENDS:]
        drafts = [h for h in s.branch if h.shot.origin == "before_draft"][-1:]
        kept = s.branch[-1:]
        going: list[Held] = []
        for below, held in reversed(list(itertools.pairwise([None, *s.branch[:-1]]))):
            assert held is not None
            lower = 0 if below is None else below.position
            worst = kept[-1].position - 1  # the target above `lower` that costs most without this one
            distance = s.position - worst
            allowed = max(self.page_tokens - 1, distance // SHARE if distance > DENSE_TOKENS else 0)
            if held.pinned or held in turns or held in drafts or worst - lower > allowed:
                kept.append(held)
            else:
                going.append(held)
        old = [h for h in s.left if not h.pinned][:-LEFT_BEHIND]
        s.branch, s.left = kept[::-1], [h for h in s.left if h not in old]
        s.thinned[0].extend(going)
        s.thinned[1].extend(old)

    def told(self, listings: Sequence[Sequence[Listed]]) -> None:
        """Take in which snapshots the sessions list; under pressure unpinned ones may be missing."""
        for s, listed in zip(self.sessions, listings, strict=True):
            self._told_of(s, listed)
        self.pressed = False

    def _told_of(self, s: SessionModel, listed: Sequence[Listed]) -> None:
        known = [*s.held, *s.thinned[0], *s.thinned[1]]
        seen = {id(self._recognised(s, known, each)) for each in listed}
        gone = [h for h in s.held if id(h) not in seen]
        extra = [h.position for thinned in s.thinned for h in thinned if id(h) in seen]
        assert self.pressed or not gone, f"snapshots at {[h.position for h in gone]} are missing"
        assert self.pressed or not extra, f"snapshots at {extra} should have gone"
        assert not any(h.pinned for h in gone), "a pinned snapshot is gone"
        s.branch = sorted((h for h in (*s.branch, *s.thinned[0]) if id(h) in seen), key=lambda h: h.order)
        s.left = [h for h in (*s.thinned[1], *s.left) if id(h) in seen]
        s.thinned = ([], [])

    def _recognised(self, s: SessionModel, known: list[Held], each: Listed) -> Held:
        found = next((h for h in known if h.shot.snapshot_id == each.snapshot_id), None)
        if found is None:
            new = [h for h in known if not h.shot.snapshot_id and h.shot.digest == each.digest]
            found = min(new, key=lambda h: h.order, default=None)
        if found is None:  # one was given up for pages or bytes and, in the same call, taken again
            again = [h for h in s.branch if h.shot.digest == each.digest and not h.pinned]
            assert again, f"{each} was not to be taken"
            assert self.pressed, f"{each} was taken twice"
            pages = tuple(s.pages[: len(again[-1].shot.pages)])
            found = Held(Shot(again[-1].shot.tokens, pages, each.origin, next(_NUMBERS)))
            s.add(found)
        shot = found.shot
        shot.snapshot_id = each.snapshot_id
        want = Listed(shot.snapshot_id, found.position, shot.digest, found.pinned, shot.origin)
        assert each == want, f"listed is {each}, expected {want}"
        return found

    # -------------------------------------------------------------------------------------------- forwards

    def open(self) -> SessionModel:
        if len(self.sessions) >= self.slots:
            raise Refused("slots")
        self.sessions.append(SessionModel(Reach(self.horizon)))
        return self.sessions[-1]

    def close(self, s: SessionModel) -> None:
        self.sessions.remove(s)

    def _run(self, *parts: tuple[SessionModel, int, int, int]) -> None:
        """One step: per session the rows `[start, end)` and of how many last ones logits are wanted."""
        try:
            for s, start, end, _ in parts:
                self._write(s, start, end)
        except Refused:
            for s, *_ in parts:
                del s.pages[-(-s.evaluated // self.page_tokens) :]
            raise
        for s, start, end, wanted in parts:
            s.edges = (s.edges & {s.reach.floor}) | ({start} if s.has_logits(start) else set())
            s.block = range(end - wanted + 1, end + 1)
            s.reach.wrote(end)
            s.evaluated = end
        for s, start, end, _ in parts:
            first = (start // self.page_tokens + 1) * self.page_tokens
            for position in range(first, end + 1, self.page_tokens) if s.takes_marks else ():
                if s.at(position) is None:
                    self._keep(s, position, "interval")

    def prefill(self, s: SessionModel, tokens: Sequence[int], chunk: int) -> None:
        end = s.position + len(tokens)
        going_on = s.is_valid or s.begun
        if not (self._fits(s, s.evaluated, end) if going_on else self._fits_anew(s, s.base(s.position), end)):
            raise Refused("pages")
        self.rebuild(s)
        self._append(s, tokens, chunk, last=1)

    def _append(self, s: SessionModel, tokens: Sequence[int], chunk: int, last: int | None) -> None:
        """In chunks; logits of all rows, or of the last chunk's last ones."""
        for at in range(0, len(tokens), chunk):
            part = tuple(tokens[at : at + chunk])
            s.tokens += part
            wanted = len(part) if last is None else last * (at + chunk >= len(tokens))
            self._run((s, s.evaluated, s.position, wanted))

    def step(self, s: SessionModel, tokens: Sequence[int], *, all_logits: bool = False) -> None:
        self._require_valid(s)
        if not self._fits(s, s.position, s.position + len(tokens)):
            raise Refused("pages")
        size = min(self.max_rows, self.max_logit_rows) if all_logits else self.max_rows
        for at in range(0, len(tokens), size):
            self._append(s, tokens[at : at + size], size, None if all_logits else 1)

    def step_together(self, work: Sequence[tuple[SessionModel, Sequence[int], int]]) -> None:
        for s, _, _ in work:
            self._require_valid(s)
        before = [s.tokens for s, _, _ in work]
        for s, tokens, _ in work:
            s.tokens += tuple(tokens)
        try:
            self._run(*((s, s.evaluated, s.position, wanted) for s, _, wanted in work))
        except Refused:
            for (s, _, _), tokens in zip(work, before, strict=True):
                s.tokens = tokens
            raise

    def logits(self, s: SessionModel) -> None:
        """Logits of the position: held, or the last token is evaluated again."""
        self._require_valid(s)
        if s.position and not s.has_logits(s.position):
            self._run((s, s.position - 1, s.position, 1))
            s.replays += 1

    def rebuild_chunk(self, s: SessionModel) -> None:
        if not s.begun:
            base = s.base(s.position)
            if base is not None and not s.is_valid:
                s.restore(base.shot)
            s.begun = True
        if not s.is_valid:
            end = min(s.position, s.evaluated + self.max_rows)
            self._run((s, s.evaluated, end, int(end == s.position)))

    def rebuild(self, s: SessionModel) -> None:
        while not s.is_valid:
            self.rebuild_chunk(s)

    def _require_valid(self, s: SessionModel) -> None:
        if not s.is_valid:
            raise Refused("stale")

    # ------------------------------------------------------------------------------------------- ways back

    def plan(self, s: SessionModel, to: int) -> Plan:
        if not 0 <= to <= s.position:
            raise Refused("position")
        if to == s.position and (s.is_valid or not to):
            return Plan("none", to, 0, to)
        if not to or (s.is_valid and s.reach.oldest <= to):
            return Plan("in_place", to, 0, to)
        base = s.base(to)
        if base is None:
            return Plan("rebuild", 0, to, to)
        replay = to - base.position
        return Plan("snapshot_replay" if replay else "snapshot", base.position, replay, to, base.shot)

    def rewind(
        self, s: SessionModel, to: int, *, most: int | None = None, defer: bool = False, fails: bool = False
    ) -> Plan:
        """`most` tokens may be replayed; `fails`: the first call of the device does."""
        plan = self.plan(s, to)
        if not defer and most is not None and plan.replay > most:
            raise Refused("replay")
        if not defer and plan.replay and not self._fits_anew(s, s.base(to), to):
            raise Refused("pages")
        if plan.kind == "none":
            return plan
        s.cut(to)
        s.epoch += 1
        if not plan.is_near or not to:
            s.forget()
        else:
            s.evaluated = to
            del s.pages[-(-to // self.page_tokens) :]
            s.block, s.edges = (
                range(s.block.start, min(s.block.stop, to + 1)),
                {p for p in s.edges if p <= to},
            )
        if defer and plan.replay:
            return replace(plan, kind="deferred", replay=0)
        if fails and not plan.is_near:
            self.lose(s)
        else:
            self.rebuild(s)
        return plan

    def restore(self, s: SessionModel, held: Held) -> Plan:
        """Go to a snapshot, also of a branch that was left."""
        if held in s.branch:
            return self.rewind(s, held.position)
        s.follow(held.shot.tokens)
        s.restore(held.shot)
        s.epoch += 1
        return Plan("snapshot", held.position, 0, held.position, held.shot)

    def fork(self, s: SessionModel, at: int, *, defer: bool = False) -> tuple[SessionModel, Plan]:
        plan = self.plan(s, at)
        child = self.open()
        child.tokens = s.tokens[:at]
        child.branch = [Held(h.shot) for h in s.branch if h.position <= at]
        if plan.is_near:
            child.evaluated = at
            child.reach.filled(min(at, s.reach.oldest), at)
            child.pages = s.pages[: -(-at // self.page_tokens)]
            child.edges = {p for p in (child.reach.floor, at) if s.has_logits(p)}
            child.block = range(s.block.start, min(s.block.stop, at + 1))
            return child, replace(plan, kind="in_place")
        if not self._fits_anew(child, child.base(at), at):
            self.close(child)
            raise Refused("pages")
        if defer and plan.replay:
            return child, replace(plan, kind="deferred", replay=0)
        self.rebuild(child)
        return child, plan

    def fail(self, s: SessionModel, tokens: Sequence[int]) -> None:
        """The device fails in a step: the history stays."""
        self._require_valid(s)
        if not self._fits(s, s.position, s.position + len(tokens)):
            raise Refused("pages")
        self.lose(s)

    def lose(self, s: SessionModel) -> None:
        """The state is gone; what its step had made room for may be gone too."""
        s.forget()
        self.pressed = True

    # ------------------------------------------------------------------------------- snapshots by request

    def snapshot(self, s: SessionModel, origin: str) -> Held | None:
        self.logits(s)
        there = s.at(s.position)
        if there is None:
            return self._keep(s, s.position, origin) if s.position else None
        self._known_as(there, origin)
        return there

    def _known_as(self, held: Held, origin: str) -> None:
        """What a step happened to take is kept as what is asked for."""
        if held.shot.origin == "interval":
            held.shot.origin = origin

    def pin_at(self, s: SessionModel, position: int) -> Held:
        """The snapshot at a position; below the end of the history, a fork goes there and takes it."""
        if not 1 <= position <= s.position:
            raise Refused("position")
        there = s.at(position)
        if there is not None:
            return there
        self._require_valid(s)
        if position == s.position:
            here = self.snapshot(s, "client")
            assert here is not None
            return here
        child, _ = self.fork(s, position, defer=True)
        child.takes_marks = False
        try:
            self.rebuild(child)
            self.logits(child)
            s.add(Held(self._keep(child, position, "client").shot))
        finally:
            self.close(child)
        there = s.at(position)
        assert there is not None
        return there

    def evict(self, snapshot_id: str) -> None:
        """All that hold a snapshot lose it."""
        ids = (h.shot for s in self.sessions for h in s.held if h.shot.snapshot_id == snapshot_id)
        shot = next(ids)  # a session from a file has a snapshot of its own under the old id
        for s in self.sessions:
            s.drop(shot)

    # ---------------------------------------------------------------------------------------------- files

    def save(self, s: SessionModel, *, exact: bool) -> None:
        """A save keeps the state at the position as a snapshot, `exact` also where logits have to be made."""
        if not s.is_valid:
            return
        there = s.at(s.position)
        if there is not None and not exact:
            self._known_as(there, "save")
        elif exact or s.has_logits(s.position):
            with suppress(Refused):
                self.snapshot(s, "save")

    def load(self, saved: SessionModel, listed: Iterable[Listed]) -> SessionModel:
        """A session from its file; snapshots that there was no room for are not listed."""
        s = self.open()
        ids = {each.snapshot_id for each in listed}
        own: dict[int, int] = {}
        for held in saved.held:
            pages = tuple(own.setdefault(p, next(self._page_ids)) for p in held.shot.pages)
            s.branch.append(Held(replace(held.shot, pages=pages), held.pinned))
        s.follow(saved.tokens)
        s.epoch = saved.epoch
        self._count(s)
        self.pressed |= len(self.references()) > self.page_count
        missing = [h for h in s.held if h.shot.snapshot_id not in ids]
        assert self.pressed or not missing, f"not loaded: {[h.position for h in missing]}"
        for held in missing:
            s.drop(held.shot)
        there = s.at(s.position)
        if there is not None and s.position:
            s.restore(there.shot)
        return s
