"""When a packet is taken for lost: one timer for all that a worker has under way, as long as answers really take.

    r        the longest answer in a batch of results, of packets that were sent once      (Karn: others tell nothing)
    smooth  += (r - smooth) / 8,   spread += (|r - smooth| - spread) / 4
    timeout  = least <= smooth + 4 * spread <= most,   doubled each time that it passes, up to `most`

What was doubled stays so until a packet is answered that was sent once. An answer takes as long as the slowest worker
does, and on a busy host as long as all the packets that wait there: a timer that does not double, or that believes
answers to what it sent twice, floods the switch with what is not lost at all (measured: six packets for one).

Source: the estimate is TCP's (RFC 6298); the doubling is in SwitchML's code, too, after 100 timeouts.
"""

from __future__ import annotations


class RetransmissionTimer:
    """See the module.

    Args:
        least: seconds; also the first timeout.
        most: seconds.
    """

    def __init__(self, least: float, most: float) -> None:
        self._least, self._most = least, max(least, most)
        self._smooth: float | None = None
        self._spread, self._factor = 0.0, 1.0

    @property
    def timeout(self) -> float:
        """Seconds after which a packet without an answer is sent again."""
        estimate = 0.0 if self._smooth is None else self._smooth + 4 * self._spread
        return min(max(estimate, self._least) * self._factor, self._most)

    def answered(self, seconds: float) -> None:
        """Packets that were sent once are answered; the longest of them took so long."""
        self._factor = 1.0
        if self._smooth is None:
            self._smooth, self._spread = seconds, seconds / 2
            return
        self._spread += (abs(seconds - self._smooth) - self._spread) / 4
        self._smooth += (seconds - self._smooth) / 8

    def expired(self) -> None:
        """It passed, and packets are sent again."""
        if self.timeout < self._most:
            self._factor *= 2
