"""The virtual clock: activities (a rank, or a lane of a rank) are threads of which one runs at a time.

A baton passes to whatever comes first in (virtual time, rank, sequence number): an activity that can go on, a timer, or
the end of a transfer in the network. Each activity has a clock of its own that runs ahead while it computes; before it
touches the world (posts a message, looks whether something is done) it lets everything happen that happens before its
own time. So event times never decrease, no clock is ever moved in retrospect, and the same program gives the same
history, bit for bit.

When no activity can go on, the kernel stops with a report of what each waits for: never a hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any, Protocol

from geartrain.errors import GeartrainError
from geartrain.sim.network import Network

REAL_WAIT = 30
"""Real seconds without a switch and without computing after which a run is given up (chosen)."""
POLL = 1e-6
"""Virtual seconds that looking at something unfinished costs (chosen)."""
PATIENCE = 64
"""Looks in a row before a poll skips to the next event."""
GIVE_UP = 4 * PATIENCE
"""Looks in a row after which a poll is given up where nothing can happen any more (chosen)."""
CLOCK_GIVE_UP = 10_000
"""The same for a poll that watches the clock: it may end by itself, and time passes faster and faster (chosen)."""
READS = 10_000
"""Readings of `ctx.clock` at the same moment after which reading takes time (chosen)."""


Explain = Callable[[BaseException | None, "Activity | None"], BaseException]
"""Makes the error that a run ends with: from what an activity raised; given (None, activity), because it waits for
something outside the simulated world; given (None, None), because nobody can go on."""


class Stopped(BaseException):
    """Raised inside activities when the run ends around them; not for user code to catch."""


class Listener(Protocol):
    """Who is told that another activity takes over (to swap state that is kept per rank)."""

    def switched(self, activity: Activity) -> None: ...


class Event:
    """Something that happens once. `describe` says what it is to somebody who wonders why a rank waits for it."""

    __slots__ = ("describe", "done", "time", "waiters")

    def __init__(self, describe: Callable[[], str] | str = "an event") -> None:
        self.done = False
        self.time = 0.0
        self.waiters: list[tuple[Activity, int]] = []
        self.describe = describe

    def __str__(self) -> str:
        return self.describe if isinstance(self.describe, str) else self.describe()


class Activity:
    """A thread under the baton.

    Attributes:
        rank: the rank it belongs to.
        name: "" for the rank's main program, else the lane's name.
        now: its own clock, in virtual seconds; never behind the kernel's.
        host: where its host stands, on a device with two lanes; never ahead of `now`.
        waits_for: what it stands still for, None while it can go on.
        state: what belongs to it and is nobody's business here.
    """

    __slots__ = (
        "daemon",
        "ended",
        "error",
        "host",
        "lock",
        "name",
        "now",
        "polls",
        "rank",
        "read_at",
        "read_time",
        "reads",
        "result",
        "state",
        "thread",
        "token",
        "waits_for",
    )

    def __init__(self, rank: int, name: str, daemon: bool) -> None:
        self.rank, self.name, self.daemon = rank, name, daemon
        self.now = self.host = 0.0
        self.lock = threading.Lock()
        self.lock.acquire()
        self.token = 0
        self.polls = 0  # looks in vain since it last computed or waited
        self.read_at = -PATIENCE  # how many there were when it last read the clock
        self.read_time, self.reads = -1.0, 0  # when it last read its own clock, and how often at that moment
        self.waits_for: Event | None = None
        self.ended = Event(f"the end of lane {name!r} of rank {rank}")
        self.error: BaseException | None = None
        self.result: Any = None
        self.state: Any = None
        self.thread: threading.Thread

    def __repr__(self) -> str:
        return f"rank {self.rank}" + (f" lane {self.name}" if self.name else "")


class _Current(threading.local):
    activity: Activity | None = None


_current = _Current()


def current_activity() -> Activity | None:
    """The activity that the calling thread is, or None."""
    return _current.activity


class Kernel:
    """Runs activities under one virtual clock.

    Args:
        network: asked for the next end of a transfer; its clock is the kernel's.
        explain: makes the error of a run that fails, while all activities still stand where they stood.
    """

    def __init__(self, network: Network, explain: Explain) -> None:
        self.network = network
        self._explain = explain
        self.now = 0.0
        self.activities: list[Activity] = []
        self.listener: Listener | None = None
        self.running: Activity | None = None
        self.failure: BaseException | None = None
        self.stopping = False
        self.switches = 0
        self._queue: list[tuple[float, int, int, Any, int]] = []
        self._sequence = 0
        self._alive = 0
        self._finished = threading.Lock()
        self._finished.acquire()

    # --- activities -------------------------------------------------------------------------------------------------

    def add(self, rank: int, name: str, body: Callable[[], Any], *, daemon: bool = False, now: float = 0.0) -> Activity:
        """A new activity that starts at virtual time `now`. Its thread exists at once and waits for the baton."""
        activity = Activity(rank, name, daemon)
        activity.now = activity.host = now
        activity.thread = threading.Thread(target=self._run, args=(activity, body), daemon=True, name=repr(activity))
        self.activities.append(activity)
        self._alive += not daemon
        self._push(now, activity)
        activity.thread.start()
        return activity

    def _run(self, activity: Activity, body: Callable[[], Any]) -> None:
        _current.activity = activity
        activity.lock.acquire()
        try:
            if not self.stopping:
                self._announce(activity)
                activity.result = body()
        except Stopped:
            pass
        except BaseException as error:
            activity.error = error
            self._fail(error, activity)
        try:
            self._leave(activity)
        except BaseException as error:  # nobody else would hand the baton on
            activity.error = error
            self._fail(error, activity)

    def _leave(self, activity: Activity) -> None:
        if self.stopping:
            return
        try:
            self.sync()
        except Stopped:
            return
        self._alive -= not activity.daemon
        self.fire(activity.ended)
        if activity.name and activity.error is None:
            self.activities.remove(activity)  # a program may spawn lanes as long as it runs
        if self._alive == 0:
            self._stop(None)
            return
        following = self._next()
        if following is not None:
            self._pass_to(following)

    def run(self) -> None:
        """Hand the baton to the first activity and wait until all are done. Ctrl-C stops them and is raised again."""
        try:
            following = self._next()
            if following is not None:
                self._pass_to(following)
            self._watch()
        except KeyboardInterrupt as interrupt:
            self.failure = interrupt
        self.stopping = True
        for activity in list(self.activities):
            if activity.thread.is_alive():
                self._end(activity)
        if self.failure is not None:
            raise self.failure

    def _watch(self) -> None:
        """Wait for the end.

        Notice when the rank that holds the baton waits for something outside the simulated world.
        """
        seen, quiet = (-1, 0.0), 0
        while not self._finished.acquire(timeout=1.0):
            now = (self.switches, time.process_time())
            quiet = quiet + 1 if now[0] == seen[0] and now[1] - seen[1] < 0.05 else 0
            seen = now
            if quiet >= REAL_WAIT:
                self._fail(None, self.running)

    def _end(self, activity: Activity) -> None:
        """Let a thread that stands still unwind. The one that holds the baton sees `stopping` at its next charge."""
        if activity.lock.locked():
            with contextlib.suppress(RuntimeError):
                activity.lock.release()
        activity.thread.join(timeout=1.0)
        if activity.thread.is_alive():  # it runs on without touching the simulated world: stop it at its next bytecode
            ident = ctypes.c_ulong(activity.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Stopped))
            activity.thread.join(timeout=9.0)

    def _fail(self, error: BaseException | None, activity: Activity | None) -> None:
        if self.stopping:
            return
        try:
            failure = self._explain(error, activity)
        except BaseException as fault:  # whatever it is: without an end, all others would wait for ever
            failure = error or fault
        self._stop(failure)

    def _stop(self, failure: BaseException | None) -> None:
        if self.stopping:
            return
        self.failure = failure
        self.stopping = True
        self._finished.release()

    # --- the clock --------------------------------------------------------------------------------------------------

    def me(self) -> Activity:
        """The calling activity."""
        activity = _current.activity
        if activity is None:
            raise GeartrainError(
                "a thread that is not a rank called into the simulated cluster; start threads with ctx.spawn"
            )
        return activity

    def charge(self, seconds: float) -> None:
        """The calling activity computes for a while."""
        if self.stopping:
            raise Stopped
        activity = _current.activity
        if activity is not None:
            activity.now += seconds
            activity.polls = 0

    def sync(self) -> Activity:
        """Let everything happen that comes before the calling activity's own time; returns the activity."""
        if self.stopping:
            raise Stopped
        activity = self.me()
        if activity.now > self.now:
            queue = self._queue
            if (queue and queue[0][0] <= activity.now) or self.network.next_event() <= activity.now:
                self._push(activity.now, activity)
                self._switch(activity)
            else:
                self.now = activity.now
        return activity

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback` when the clock is at `when` (not before now), whoever holds the baton then."""
        assert when >= self.now, f"an event at {when} would lie before now = {self.now}"
        self._sequence += 1
        heapq.heappush(self._queue, (when, -1, self._sequence, callback, 0))

    def fire(self, event: Event) -> None:
        """The event happens now; whoever waits for it can go on."""
        event.done = True
        event.time = self.now
        for activity, token in event.waiters:
            if activity.token == token:
                activity.token += 1
                self._push(max(self.now, activity.now), activity)
        event.waiters.clear()

    def wait(self, event: Event, deadline: float | None = None) -> bool:
        """Stand still until the event has happened; False if the deadline came first (nothing is cancelled then).

        A clock that is ahead stays where it is if the event happens before it: no need to let the others catch up
        first.
        """
        if self.stopping:
            raise Stopped
        activity = self.me()
        if event.done:
            activity.polls = 0
            return True
        if deadline is not None and deadline <= activity.now:
            self.sync()
            if not event.done:
                self.look(f"waits for {event}, but not at all")
            return event.done
        activity.polls = 0
        event.waiters.append((activity, activity.token))
        if deadline is not None:
            self._push(deadline, activity)
        activity.waits_for = event
        self._switch(activity)
        activity.waits_for = None
        activity.token += 1
        return event.done

    def poll(self, event: Event) -> bool:
        """Whether the event has happened. Looking in vain costs time, so that a loop that looks makes progress."""
        activity = self.sync()
        if event.done:
            activity.polls = 0
            return True
        self.idle(f"looking in vain for {event}")
        return event.done

    def read_clock(self) -> float:
        """The calling activity's time. Reading costs a little, more and more where a program does nothing but read."""
        activity = self.me()
        activity.polls += 1
        activity.read_at = activity.polls
        activity.now += _creeping(activity.polls)
        return activity.now

    def own_time(self) -> float:
        """The calling activity's time, for nothing; where a program does nothing but read it, time passes all the same.

        Others get on then, too: it may be one of them that the program looks for.
        """
        activity = self.me()
        if activity.now != activity.read_time:
            activity.read_time, activity.reads = activity.now, 0
        activity.reads += 1
        activity.read_at = activity.polls
        if activity.reads > READS:
            activity.now += _creeping(activity.reads - READS)
            activity.read_time = activity.now
            self.sync()
        return activity.now

    def look(self, what: str) -> None:
        """The calling activity looked in vain, which is free as long as it does not do so again and again."""
        activity = self.me()
        activity.polls += 1
        if activity.polls > PATIENCE:
            self.idle(what)

    def idle(self, what: str) -> None:
        """The calling activity looked in vain: pass a little time, or after many looks go to the next event.

        Others that look in vain are no event. Where nobody does anything else, and nobody watches the clock, that is a
        standstill.
        """
        activity = self.me()
        activity.polls += 1
        looks = activity.polls
        if looks > PATIENCE:
            soonest, lookers = self._soonest()
            watched = any(_watches(other) for other in (activity, *lookers))
            if soonest < inf:
                activity.now = max(activity.now, soonest)
            elif looks > (CLOCK_GIVE_UP if watched else GIVE_UP):
                self.wait(Event(f"{what}, though nothing else can happen"))
            elif _watches(activity):
                activity.now += POLL * 2 ** min((looks - PATIENCE) // 16, 20)
            else:
                activity.now = max([activity.now, *(other.now for other in lookers)])
        activity.now += POLL
        self.sync()
        activity.polls = looks

    def _soonest(self) -> tuple[float, list[Activity]]:
        """When something happens that is not just another look in vain, and who will look."""
        soonest, lookers = self.network.next_event(), []
        for when, _, _, item, token in self._queue:
            if not isinstance(item, Activity):
                soonest = min(soonest, when)
            elif item.token == token:
                if item.polls > PATIENCE:
                    lookers.append(item)
                else:
                    soonest = min(soonest, when)
        return soonest, lookers

    # --- the baton --------------------------------------------------------------------------------------------------

    def _push(self, when: float, activity: Activity) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (when, activity.rank, self._sequence, activity, activity.token))

    def _next(self) -> Activity | None:
        """The activity whose turn it is; runs timers and ends transfers on the way. None: nobody can go on."""
        queue, network = self._queue, self.network
        while True:
            when = queue[0][0] if queue else inf
            if when > self.now:
                transfer = network.next_event()
                if transfer <= when and transfer < inf:
                    self.now = max(self.now, transfer)
                    network.advance(transfer)
                    continue
            if not queue:
                self._fail(None, None)
                return None
            when, _, _, item, token = heapq.heappop(queue)
            if isinstance(item, Activity):
                if item.token != token:
                    continue
                self.now = max(self.now, when)
                item.now = max(item.now, when)
                return item
            self.now = max(self.now, when)
            item()

    def _switch(self, me: Activity) -> None:
        following = self._next()
        if following is me:
            me.token += 1
            return
        if following is not None:
            self._pass_to(following)
        me.lock.acquire()
        if self.stopping:
            raise Stopped
        self._announce(me)

    def _pass_to(self, activity: Activity) -> None:
        self.switches += 1
        self.running = activity
        activity.token += 1
        activity.lock.release()

    def _announce(self, activity: Activity) -> None:
        if self.listener is not None:
            self.listener.switched(activity)


def _creeping(reads: int) -> float:
    """Virtual seconds that a reading of the clock takes: next to nothing, and more after many in a row."""
    return POLL / 10 * 2.0 ** min(max(0, reads - PATIENCE), 14)


def _watches(activity: Activity) -> bool:
    """Whether an activity that looks in vain reads the clock between its looks, so that it may end by itself."""
    return 0 <= activity.polls - activity.read_at <= PATIENCE
