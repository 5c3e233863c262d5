"""Schedule tables: in which order a pipeline's stages compute the forward and backward blocks of micro-batches.

Pieces of the model are numbered along it, 0 to P - 1; piece p lives on stage p mod N. With one piece per stage P = N;
interleaved schedules give each stage several. A block is (F or B, piece, micro-batch), and it must wait for

    F(p, m) after F(p - 1, m),    B(P - 1, m) after F(P - 1, m),    B(p, m) after B(p + 1, m) and F(p, m)

    gpipe        every stage: all F, then all B                                             Huang and others, 2019
    1f1b         stage s: N - s - 1 times F, then F and B in turn, then the B that are left  Narayanan and others, 2019
    interleaved  the same over several pieces per stage, N micro-batches at a time           Narayanan and others, 2021

A table is data: one interpreter runs it, one event loop times it, one check refuses what could not be run.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from geartrain.errors import StrategyError


class Block(NamedTuple):
    """What one stage computes at a time for one micro-batch.

    Attributes:
        kind: "F" for forward, "B" for backward.
        piece: of the model, 0 at its start.
        micro_batch: from 0.
    """

    kind: Literal["F", "B"]
    piece: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.piece}.{self.micro_batch}"


@dataclass(frozen=True)
class ScheduleTable:
    """The order of every stage's blocks.

    Attributes:
        rows: of each stage its blocks, first to last.
        num_pieces: pieces of the model; piece p lives on stage p mod len(rows).
        num_micro_batches: of one step.

    Example:
        >>> print(gpipe(2, 2))
        stage 0  F0.0 F0.1 B0.0 B0.1
        stage 1  F1.0 F1.1 B1.0 B1.1
    """

    rows: tuple[tuple[Block, ...], ...]
    num_pieces: int
    num_micro_batches: int

    def __str__(self) -> str:
        return "\n".join(f"stage {stage}  {' '.join(map(str, row))}" for stage, row in enumerate(self.rows))

    @property
    def words(self) -> str:
        """The kinds of the blocks, stage by stage, for tables of one piece per stage with micro-batches in their order.

        As in `F2BFB/F2BFB`, see `from_words`.
        """
        rows = []
        for row in self.rows:
            runs = [(kind, len(list(same))) for kind, same in itertools.groupby(block.kind for block in row)]
            rows.append("".join(f"{kind}{count if count > 1 else ''}" for kind, count in runs))
        return "/".join(rows)

    def check(self) -> None:
        """StrategyError unless every block is there once, on its stage, and all of them can be run in this order."""
        stages = len(self.rows)
        for stage, row in enumerate(self.rows):
            pieces = range(stage, self.num_pieces, stages)
            wanted = {Block(kind, p, m) for kind in _KINDS for p in pieces for m in range(self.num_micro_batches)}
            if wrong := sorted(wanted.symmetric_difference(row)):
                raise StrategyError(f"stage {stage} must compute each of its blocks once; look at {_some(wrong)}")
            if len(row) != len(wanted):
                raise StrategyError(f"stage {stage} computes a block twice: {len(row)} blocks, {len(wanted)} expected")
        self._run()

    def _run(self) -> None:
        """Go through all rows as far as their blocks allow it, until nothing is left."""
        done: set[Block] = set()
        places = [0] * len(self.rows)
        moved = True
        while moved:
            moved = False
            for stage, row in enumerate(self.rows):
                while places[stage] < len(row) and done.issuperset(needed(row[places[stage]], self.num_pieces)):
                    done.add(row[places[stage]])
                    places[stage] += 1
                    moved = True
        if stuck := [
            f"stage {stage} at {row[place]}, which needs {_some(missing(row[place], self.num_pieces, done))}"
            for stage, (row, place) in enumerate(zip(self.rows, places, strict=True))
            if place < len(row)
        ]:
            raise StrategyError("this order of blocks cannot be run, every stage waits: " + "; ".join(stuck))


_KINDS: tuple[Literal["F", "B"], ...] = ("F", "B")


def from_words(text: str, num_micro_batches: int) -> ScheduleTable:
    """The table that words stand for: F and B with how often, stages between slashes; checked.

    Example:
        >>> print(from_words("F2B2/FBFB", 2))
        stage 0  F0.0 F0.1 B0.0 B0.1
        stage 1  F1.0 B1.0 F1.1 B1.1
    """
    words = text.split("/")
    rows = []
    for stage, word in enumerate(words):
        if not re.fullmatch(r"(?:[FB][0-9]*)+", word):
            raise StrategyError(f"{word!r} is no order of blocks; write F and B with how often, like F2BFB")
        kinds = "".join(kind * int(count or 1) for kind, count in re.findall(r"([FB])([0-9]*)", word))
        counts = {"F": itertools.count(), "B": itertools.count()}
        rows.append(tuple(Block("F" if kind == "F" else "B", stage, next(counts[kind])) for kind in kinds))
    table = ScheduleTable(tuple(rows), len(words), num_micro_batches)
    table.check()
    return table


def needed(block: Block, num_pieces: int) -> Iterator[Block]:
    """The blocks that must have been computed before one."""
    kind, piece, micro_batch = block
    if kind == "F":
        if piece:
            yield Block("F", piece - 1, micro_batch)
        return
    yield Block("F", piece, micro_batch)
    if piece < num_pieces - 1:
        yield Block("B", piece + 1, micro_batch)


def missing(block: Block, num_pieces: int, done: set[Block]) -> list[Block]:
    """Of those the ones that have not been."""
    return [before for before in needed(block, num_pieces) if before not in done]


def _some(blocks: Sequence[Block]) -> str:
    return " ".join(map(str, blocks[:4])) + (" ..." if len(blocks) > 4 else "")


def gpipe(num_stages: int, num_micro_batches: int) -> ScheduleTable:
    """All forward blocks, then all backward blocks."""
    rows = tuple(
        tuple(Block(kind, stage, m) for kind in _KINDS for m in range(num_micro_batches)) for stage in range(num_stages)
    )
    return ScheduleTable(rows, num_stages, num_micro_batches)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> ScheduleTable:
    """As few micro-batches under way as keep all stages busy: N - s at stage s."""
    rows = []
    for stage in range(num_stages):
        forward = [Block("F", stage, m) for m in range(num_micro_batches)]
        backward = [Block("B", stage, m) for m in range(num_micro_batches)]
        rows.append(_in_turn(forward, backward, num_stages - stage - 1))
    return ScheduleTable(tuple(rows), num_stages, num_micro_batches)


def interleaved(num_stages: int, chunks: int, num_micro_batches: int) -> ScheduleTable:
    """1F1B with `chunks` pieces per stage, which divides the time of filling and draining by `chunks`.

        forward unit k of a stage: chunk (k / N) mod c,  micro-batch (k / (N c)) N + k mod N;  backward: chunks reversed
        stage s begins with 2 (N - s - 1) + (c - 1) N forward units

    StrategyError unless the number of micro-batches is a multiple of N.
    """
    if num_micro_batches % num_stages:
        raise StrategyError(
            f"an interleaved schedule takes micro-batches by as many as there are stages: {num_micro_batches} is no "
            f"multiple of {num_stages}.\n  give micro_batches={num_stages * -(-num_micro_batches // num_stages)}"
        )
    rows = []
    for stage in range(num_stages):
        units = [_unit(k, num_stages, chunks) for k in range(num_micro_batches * chunks)]
        forward = [Block("F", chunk * num_stages + stage, m) for chunk, m in units]
        backward = [Block("B", (chunks - 1 - chunk) * num_stages + stage, m) for chunk, m in units]
        rows.append(_in_turn(forward, backward, 2 * (num_stages - stage - 1) + (chunks - 1) * num_stages))
    return ScheduleTable(tuple(rows), num_stages * chunks, num_micro_batches)


def _unit(k: int, num_stages: int, chunks: int) -> tuple[int, int]:
    """Chunk and micro-batch of a stage's k-th unit."""
    group, within = divmod(k, num_stages * chunks)
    return within // num_stages, group * num_stages + within % num_stages


def _in_turn(forward: Sequence[Block], backward: Sequence[Block], first: int) -> tuple[Block, ...]:
    """`first` forward blocks, then forward and backward in turn, then the backward blocks that are left."""
    first = min(first, len(forward))
    row = list(forward[:first])
    for index, block in enumerate(forward[first:]):
        row += [block, backward[index]]
    return (*row, *backward[len(forward) - first :])
