"""Small whole numbers packed into bytes, so many bits each and not one more.

bytes = ceil(count * bits / 8);    the first number in the lowest bits
"""

from __future__ import annotations

import torch
from torch import Tensor


def packed_size(count: int, bits: int) -> int:
    """Bytes that so many numbers take."""
    return -(-count * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Pack numbers below 2^bits.

    Args:
        codes: uint8, 1-D.
        bits: 1 to 8.
    """
    if bits == 8:
        return codes
    if 8 % bits:
        codes, bits = _digits(codes, bits), 1
    per_byte = 8 // bits
    missing = -codes.numel() % per_byte
    if missing:
        codes = torch.cat([codes, codes.new_zeros(missing)])
    weights = 2 ** torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (codes.view(-1, per_byte) * weights).sum(1, dtype=torch.uint8)


def unpack(data: Tensor, count: int, bits: int) -> Tensor:
    """The first `count` numbers in packed bytes; uint8."""
    if bits == 8:
        return data
    if 8 % bits:
        return _from_digits(unpack(data, count * bits, 1), bits)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=data.device)
    codes: Tensor = (data.unsqueeze(1) >> shifts) & (2**bits - 1)
    return codes.view(-1)[:count]


def _digits(codes: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(bits, dtype=torch.uint8, device=codes.device)
    return ((codes.unsqueeze(1) >> shifts) & 1).view(-1)


def _from_digits(digits: Tensor, bits: int) -> Tensor:
    weights = 2 ** torch.arange(bits, dtype=torch.uint8, device=digits.device)
    return (digits.view(-1, bits) * weights).sum(1, dtype=torch.uint8)
