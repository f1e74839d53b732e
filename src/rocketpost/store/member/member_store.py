"""The store of a member of a group that elects its leader.

It consists of a message store, the term table and the hard state. It is opened so that nothing
after the commit bound is visible; the rest waits until the group has decided about it.

A member whose files lack something that it had promised is *suspect*: its log ends before the
watermark, has damaged bytes, contradicts its terms, or its hard state is lost. A suspect member
must not vote or lead. That is saved, so that it is not forgotten before its log is repaired. A torn
tail is no such case: it was never promised, and recovery cuts it off. A record that was written
whole is never taken for torn (``store.recovery.torn_writes``), even after the watermark: the member
may have acknowledged it since the watermark was saved.

Order of the changes on disk, so that a stop at any operation is harmless:

- A term: the term table, then the first byte of the term. A start drops a term without bytes.
- A cut: the watermark is lowered; then the store decides the cut and carries it out; the term table
  and the members follow before the cut counts as finished. A start that finds an unfinished cut
  finishes all of it. So the log and its terms have both been cut, or neither.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from rocketpost.errors import StoreError
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.members import Configuration
from rocketpost.store.checkpoint import load_checkpoint_blocking
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended
from rocketpost.store.files import FileSystem, RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.member.group_records import draft_term
from rocketpost.store.member.hard_state import (
    CONFIGURATION_COUNT_MAX,
    LOG_LOST,
    LOG_UNUSABLE,
    STATE_LOST,
    HardState,
    HardStateFile,
    HardStateLost,
)
from rocketpost.store.member.outside_group import why_not_member
from rocketpost.store.member.repair import OldLog
from rocketpost.store.member.reset import finish_reset_blocking
from rocketpost.store.member.term_check import CheckedTerms, check_terms, rebuild_terms
from rocketpost.store.member.term_file import LoadedTerms, Spans, TermFile
from rocketpost.store.message_store import MessageStore
from rocketpost.store.recovery.extent import ExtentFile

logger = logging.getLogger(__name__)


class MemberStore:
    """Message store, term table and hard state of one member.

    ``*_blocking`` methods may be called by one thread at a time, but
    :meth:`save_progress_blocking` and :meth:`save_vote_blocking` by any thread at any time.
    """

    store: MessageStore

    def __init__(self, files: FileSystem, layout: Layout, clock: Clock) -> None:
        self._clock = clock
        self._files = files
        self._layout = layout
        self._lost = ""  # the reason why term and vote may be forgotten
        self._loaded_terms = LoadedTerms(None)
        self._problem = ""
        self._terms = TermFile(files, layout.terms)
        self._hard_state = HardStateFile(files, layout.hard_states)
        self._changing = threading.Lock()
        self._is_loaded = False
        self.is_new = False
        """Whether the store belonged to no group before."""
        self._claimed_first: int | None = None
        self.needs_new_log = False
        """Whether the log cannot be completed at its end: it must be replaced by the leader's."""
        self.suspicions: tuple[str, ...] = ()
        """Reasons why this start found the member suspect."""

    @classmethod
    def open_blocking(
        cls,
        config: StoreConfig,
        *,
        clock: Clock,
        files: FileSystem | None = None,
        on_durable: Callable[[Position], None] = lambda position: None,
        on_broken: Callable[[str], None] = lambda why: None,
        on_truncated: Callable[[Position], None] = lambda position: None,
        on_reset: Callable[[Position], None] = lambda position: None,
    ) -> MemberStore:
        """Lock, load, recover and judge the store of a member.

        Missing segments do not prevent that: they make the member suspect, since its peers have
        them.

        Args:
            config: The store's settings.
            clock: The clock.
            files: The file system.
            on_durable: As for ``MessageStore``.
            on_broken: As for ``MessageStore``.
            on_truncated: As for ``MessageStore``.
            on_reset: Called if a replacement of the log is finished; see ``store.member.reset``.

        Raises:
            StoreLocked: Another process has the store open.
            StoreError: The store cannot be read with these settings, cannot be judged, or was used
            outside of its group.
        """
        files = files if files is not None else RealFiles()
        member = cls(files, Layout(config.root, config.commit_log_path), clock)
        member._problem = finish_reset_blocking(config, files, on_reset=on_reset)

        def take_cut(position: Position) -> None:
            member._take_cut(position)
            on_truncated(position)

        try:
            if why := why_not_member(files, member._layout):
                raise StoreError(why)
            ceiling = member._find_bound(files)
        except OSError as error:
            raise StoreError(f"{config.root} cannot be opened: {error}") from error
        try:
            member.store = MessageStore.open_blocking(
                config,
                clock=clock,
                files=files,
                accept_missing=True,
                ceiling=Position(ceiling),
                is_member=True,
                on_durable=on_durable,
                on_broken=on_broken,
                on_truncated=take_cut,
            )
        except BaseException:
            member.close_state()
            raise
        try:
            member._judge(ceiling)
        except OSError as error:
            member.close_blocking()
            raise StoreError(f"{config.root} cannot be opened: {error}") from error
        except BaseException:
            member.close_blocking()
            raise
        return member

    # -- state

    @property
    def state(self) -> HardState:
        """The hard state on disk."""
        return self._hard_state.state

    @property
    def save_count(self) -> int:
        """Number of times that the promises were saved; it falls only if files are lost."""
        return self._hard_state.save_count

    @property
    def is_unproven(self) -> bool:
        """Whether the member has no past: its group is new, or its disk was lost."""
        state = self.state
        return state.suspect == STATE_LOST and state.term == 0 and not self.spans

    @property
    def spans(self) -> Spans:
        """The terms of the log, in ascending order."""
        return self._terms.spans

    @property
    def old_log(self) -> OldLog:
        """The committed bytes of the log, for comparison and repair."""
        return OldLog(self._files, self.store.segments, self.store.damage)

    def knows_terms(self, spans: Iterable[tuple[int, int]]) -> bool:
        """Tell whether bytes of these terms may be appended without :meth:`note_terms_blocking`."""
        known = self._terms.spans
        if known and known[-1].start >= self.store.end_position:
            return False  # a term without bytes, perhaps of a leader that was replaced
        last = _last_term(known)
        return all(term <= last for term, _ in spans)

    # -- changes

    def save_vote_blocking(self, term: int, vote: str | None) -> None:
        """Make a term and its vote durable. Any thread.

        Raises:
            StoreError: That would revoke a term or a vote.
            StoreBroken: It cannot be saved; promise nothing any more.
        """
        with self._changing:
            self._hard_state.save_blocking(self.state._replace(term=term, vote=vote))

    def save_progress_blocking(self, commit: int, acknowledged: int) -> None:
        """Raise commit bound and watermark, never beyond what is durable here. Any thread.

        Neither is raised if the log is to be replaced: it may begin, and so end, after everything
        that was ever committed.

        Raises:
            StoreBroken: It cannot be saved; promise nothing any more.
        """
        if self.needs_new_log:
            return
        with self._changing:
            state, durable = self.state, self.store.durable_position
            raised = state._replace(
                commit=max(state.commit, min(commit, durable)),
                watermark=max(state.watermark, min(acknowledged, durable)),
            )
            self._hard_state.save_blocking(raised)

    def save_members_blocking(self, configurations: Iterable[Configuration]) -> None:
        """Make the newest configurations of the group durable.

        Raises:
            StoreError: There are too many members, or a name is too long.
            StoreBroken: It cannot be saved; promise nothing any more.
        """
        newest = tuple(configurations)[-CONFIGURATION_COUNT_MAX:]
        with self._changing:
            self._hard_state.save_blocking(self.state._replace(configurations=newest))

    def clear_suspicion_blocking(self) -> None:
        """Record that the log has been repaired.

        Raises:
            StoreBroken: It cannot be saved; promise nothing any more.
        """
        with self._changing:
            self._hard_state.save_blocking(self.state._replace(suspect=0))

    def begin_group_blocking(self, floor: int) -> None:
        """Record that the group is new, and where the messages end that one member has brought.

        Raises:
            StoreBroken: It cannot be saved; promise nothing any more.
        """
        with self._changing:
            self._hard_state.save_blocking(self.state._replace(suspect=0, floor=floor))

    def doubt_blocking(self, loss: int = STATE_LOST, *, saves: int = 0) -> None:
        """Record what may be lost: this member must not vote until repaired.

        Args:
            loss: The kind of loss; without one, term and vote may be forgotten. With 0, only
                ``saves`` is recorded.
            saves: The number of saves that another member remembers. Later saves are counted from
                there, so that this loss is not found again.

        Raises:
            StoreBroken: It cannot be saved; promise nothing any more.
        """
        with self._changing:
            doubtful = self.state._replace(suspect=max(self.state.suspect, loss))
            self._hard_state.save_blocking(doubtful, number_min=saves)

    def begin_term_blocking(self, term: int, leader: str, host: bytes) -> Appended:
        """Append the record that begins a term; the caller commits it.

        Everything appended before must be committed. A term without bytes is dropped, as in
        :meth:`note_terms_blocking`.

        Raises:
            StoreError: The term is not later than that of the log, or the record cannot be stored.
            OSError: The term table cannot be saved.
        """
        start = self.store.end_position
        known = tuple(span for span in self._terms.spans if span.start < start)
        self._terms.replace_blocking((*known, (term, start)))
        now_ms = self._clock.now_ms()
        draft = draft_term(term, leader, start=start, host=host, now_ms=now_ms)
        try:
            return self.store.append(draft)
        except StoreError:
            self._terms.cut_blocking(start)
            raise

    def note_terms_blocking(self, spans: Iterable[tuple[int, int]]) -> None:
        """Make the terms of a leader's bytes durable; call it before the bytes are appended.

        A term without bytes, whose leader was replaced before it wrote any, is dropped.

        Raises:
            StoreError: The terms cannot follow those of the log.
            OSError: The term table cannot be saved.
        """
        end = self.store.end_position
        known = tuple(span for span in self._terms.spans if span.start < end)
        last = _last_term(known)
        noted = (*known, *(span for span in spans if span[0] > last))
        if noted != self._terms.spans:
            self._terms.replace_blocking(noted)

    def drop_empty_term_blocking(self) -> None:
        """Remove a term of which the log has no byte; call it when its leader gives up.

        Otherwise the bytes of another leader could be taken for bytes of this term.

        Raises:
            OSError: The term table cannot be saved.
        """
        self._terms.cut_blocking(self.store.end_position)

    def cut_blocking(self, position: int) -> None:
        """Cut the log and its terms, durably; see ``MessageStore.truncate_to_blocking``.

        Raises:
            StoreError: The log cannot be cut there, or has committed records after it; nothing was
                changed.
            StoreFull: There is no room; the log was not changed.
            StoreBroken: A file could not be changed; the next start finishes the cut.
        """
        with self._changing:
            state = self.state
            if position < state.commit:
                raise StoreError(
                    f"the log cannot be cut at {position}: it is committed up to {state.commit}"
                )
            lowered = state._replace(watermark=min(state.watermark, position))
            self._hard_state.save_blocking(lowered)
            self.store.truncate_to_blocking(Position(position))

    def forget_terms_blocking(self) -> None:
        """Remove terms whose bytes have expired.

        Raises:
            OSError: The term table cannot be saved.
        """
        self._terms.forget_before_blocking(self.store.first_position)

    def close_state(self) -> None:
        """Close the files of the hard state: the member takes no part in its group any more."""
        self._hard_state.close()

    def close_blocking(self) -> None:
        """Close everything."""
        try:
            self.store.close_blocking()
        finally:
            self.close_state()

    # -- opening

    def _find_bound(self, files: FileSystem) -> int:
        """Return a position up to which the log is known to be committed, reading only.

        A checkpoint never covers more than what was visible.
        """
        extent = ExtentFile(files, self._layout.extent)
        try:
            claimed = extent.load_blocking()
        finally:
            extent.close()
        self._claimed_first = claimed.first if claimed is not None else None
        state = self._hard_state.read_blocking()
        progress = load_checkpoint_blocking(files, self._layout.checkpoint).progress
        commit = state.commit if state is not None else 0
        return max(commit, progress.position if progress is not None else 0)

    def _load(self) -> None:
        """Read term table and hard state, once; the store is locked."""
        if self._is_loaded:
            return
        self._is_loaded = True
        self._loaded_terms = self._terms.load_blocking()
        try:
            self.is_new = self._hard_state.load_blocking() is None
        except HardStateLost as error:
            self._lost = f"the hard state is lost: {error}"

    def _take_cut(self, position: int) -> None:
        """Cut terms and members with the log; also called by a start that finishes a cut."""
        self._load()
        self._terms.cut_blocking(position)
        kept = tuple(each for each in self.state.configurations if each.position <= position)
        if kept != self.state.configurations:
            self._hard_state.save_blocking(self.state._replace(configurations=kept))

    def _judge(self, bound: int) -> None:
        self._load()
        end = self.store.end_position
        if bound > end:
            self.store.set_ceiling(end)
        has_table = self._loaded_terms.spans is not None
        checked = check_terms(self.store, self._terms.spans) if has_table else None
        if checked is None:
            checked = rebuild_terms(self.store)
            if checked.spans or self._loaded_terms.problem:
                logger.error(
                    "term table lost, rebuilt from the log terms=%s reason=%s",
                    len(checked.spans), self._loaded_terms.problem or "its file is missing",
                )  # fmt: skip
        self.is_new = self.is_new and not checked.spans
        damage = tuple(self._find_damage(checked))
        self.needs_new_log = bool(damage) or self.state.suspect == LOG_UNUSABLE
        self.suspicions = (*self._find_losses(checked), *damage)
        state = self.state
        if state.suspect and not self.suspicions and (state.term or checked.spans):
            self.suspicions = ("an earlier start found damage, and its repair is not finished",)
        for reason in self.suspicions:
            logger.error("this member may not vote or lead until its log is repaired: %s", reason)
        # Before the table is repaired, which may remove the evidence.
        self._save_verdict(checked)
        if not has_table or checked.spans != self._terms.spans:
            self._terms.replace_blocking(checked.spans)

    def _find_losses(self, terms: CheckedTerms) -> Iterator[str]:
        """Yield promises that are not kept; the log may be right up to its end all the same."""
        store, state = self.store, self.state
        last_term = _last_term(terms.spans)
        if not self._lost and not self._hard_state.save_count and not self.is_new:
            self._lost = "the hard state is missing, but the log has terms"
        elif not self._lost and last_term > state.term:
            self._lost = f"the hard state is of term {state.term}, but the log has term {last_term}"
        if self._lost:
            yield self._lost
        promised = max(state.watermark, state.commit)
        if store.end_position < promised:
            yield f"the log ends at {store.end_position}, but was durable up to {promised}"

    def _find_damage(self, terms: CheckedTerms) -> Iterator[str]:
        """Yield the reasons why the log before its end cannot be relied on."""
        store, state, first = self.store, self.state, self.store.first_position
        claimed = self._claimed_first
        if claimed is not None and first > claimed:
            yield f"the log begins at {first}, but began at {claimed}: its first segments are lost"
        elif first > max(state.commit, store.confirmed_position):
            yield f"the log begins at {first}, but is committed up to {state.commit} only"
        damaged = store.damage.all()  # of segments that did not expire
        if damaged:
            begin, stop, reason, *_ = damaged[0]
            yield f"{len(damaged)} ranges of the log are damaged; {begin} to {stop}: {reason}"
        if terms.problem:
            yield terms.problem
        if self._problem:
            yield self._problem

    def _save_verdict(self, checked: CheckedTerms) -> None:
        state = self.state
        last_term = _last_term(checked.spans)
        members = self._find_members(checked)
        if members != state.configurations:
            state = state._replace(configurations=members)
        if last_term > state.term:
            state = state._replace(term=last_term, vote=None)
        if self.suspicions:
            loss = STATE_LOST if self._lost else LOG_LOST
            if self.needs_new_log:
                loss = LOG_UNUSABLE
            state = state._replace(suspect=max(state.suspect, loss))
        self._hard_state.save_blocking(state)

    def _find_members(self, checked: CheckedTerms) -> tuple[Configuration, ...]:
        """Return the newest configurations: those of the log, and one from before its beginning.

        A saved one that the log does not state was saved before its record, or cut off with it.
        """
        if checked.problem:
            return self.state.configurations
        first = self.store.first_position
        before = [each for each in self.state.configurations if each.position <= first]
        later = [each for each in checked.configurations if each.position > first]
        return tuple((*before, *later)[-CONFIGURATION_COUNT_MAX:])


def _last_term(spans: Spans) -> int:
    return spans[-1].term if spans else 0
