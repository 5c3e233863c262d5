"""Which tensors travel together: the merge rule of MG-WFBP, from when gradients are ready and what a message costs.

Tensors 1, 2, ... in the order in which backward makes them, ready at r_1 <= r_2 <= ...; a message of n bytes takes
a + b n, messages go one after another. A group that ends with tensor k would start at s = max(end of the group before,
r_k) and take t = a + b n. The next tensor joins it if

    r_{k+1} < s + t   and   (s > r_{k+1}   or   r_{k+1} - s < a)

that is, if it is ready before the group has gone, and either the wire is busy anyhow, or waiting for it takes less than
a message of its own costs to start. Otherwise the group is closed.

Source: Shi, Chu, Li, 2019, arXiv 1811.11141, as in the code of HKBU-HPML/ddl-benchmarks; that code also merges every
tensor under 8192 elements, which is not done here.
"""

from __future__ import annotations

from collections.abc import Sequence


def merged_groups(ready: Sequence[float], nbytes: Sequence[int], alpha: float, beta: float) -> list[list[int]]:
    """Positions of the tensors in each group, in order.

    Args:
        ready: when each tensor's gradient is there, seconds, ascending.
        nbytes: of each tensor.
        alpha: seconds that a message costs to start.
        beta: seconds per byte.

    Example:
        >>> merged_groups([0.0, 1.0, 9.0], [1, 1, 1], alpha=2.0, beta=0.1)
        [[0, 1], [2]]
    """
    groups: list[list[int]] = []
    free, size = 0.0, 0
    for k, moment in enumerate(ready):
        if groups:
            last = groups[-1]
            start = max(free, ready[last[-1]])
            end = start + alpha + beta * size
            if moment < end and (start > moment or moment - start < alpha):
                last.append(k)
                size += nbytes[k]
                continue
            free = end
        groups.append([k])
        size = nbytes[k]
    return groups


def last_end(
    groups: Sequence[Sequence[int]], ready: Sequence[float], nbytes: Sequence[int], alpha: float, beta: float
) -> float:
    """When the last of these groups has arrived."""
    end = 0.0
    for group in groups:
        end = max(end, ready[group[-1]]) + alpha + beta * sum(nbytes[j] for j in group)
    return end
