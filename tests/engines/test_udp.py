"""Packets over UDP: the three ways of sending and receiving many give the same."""

import itertools
import socket
import time

import numpy as np
import pytest

from geartrain.engines import udp
from geartrain.engines.udp import ManyAtOnce, OneByOne, Segmented

WIDTH = 1000


def opened():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sock.bind(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    return sock


def made(kind, sock, addresses):
    if kind is Segmented:
        if not udp.segmented(sock):
            pytest.skip("this kernel does not cut packets")
        return Segmented(sock, addresses, 20_000)
    if kind is ManyAtOnce and not udp.many_at_once():
        pytest.skip("this system has no sendmmsg")
    return kind(sock, addresses)


@pytest.mark.parametrize(("sender", "receiver"), [*itertools.product((Segmented, ManyAtOnce, OneByOne), repeat=2)])
def test_packets_arrive_as_they_were_sent(sender, receiver):
    with opened() as source, opened() as target:
        addresses = [source.getsockname(), target.getsockname()]
        outgoing, incoming = made(sender, source, addresses), made(receiver, target, addresses)
        long = np.arange(100 * WIDTH, dtype=np.uint64).view(np.uint8).reshape(-1, WIDTH)[:100]
        short = np.arange(48, dtype=np.uint8).reshape(3, 16)
        assert outgoing.send(1, long) == 100
        assert outgoing.send(1, short) == 3
        buffer, lengths, got = np.zeros((300, 1024), np.uint8), np.zeros(300, np.uint32), 0
        end = time.monotonic() + 10
        while got < 103 and time.monotonic() < end:
            got += incoming.receive(buffer[got:], lengths[got:])
        assert got == 103
        assert lengths[:103].tolist() == [WIDTH] * 100 + [16] * 3
        assert (buffer[:100, :WIDTH] == long).all() and (buffer[100:103, :16] == short).all()
        assert incoming.receive(buffer, lengths) == 0


@pytest.mark.parametrize("kind", [Segmented, ManyAtOnce, OneByOne])
def test_a_full_buffer_is_told_and_no_error(kind):
    with opened() as source, opened() as target:
        source.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        outgoing = made(kind, source, [target.getsockname()])
        packets = np.zeros((500, WIDTH), np.uint8)
        assert 0 < outgoing.send(0, packets) <= 500


def test_the_quickest_way_is_taken_and_the_others_stand_in_for_it(monkeypatch):
    with opened() as sock:
        monkeypatch.setattr(udp, "segmented", lambda sock: False)
        monkeypatch.setattr(udp, "many_at_once", lambda: True)
        assert isinstance(udp.packet_socket(sock, [sock.getsockname()], 0), ManyAtOnce)
        monkeypatch.setattr(udp, "many_at_once", lambda: False)
        assert isinstance(udp.packet_socket(sock, [sock.getsockname()], 0), OneByOne)
        monkeypatch.setattr(udp, "segmented", lambda sock: True)
        assert isinstance(udp.packet_socket(sock, [sock.getsockname()], 0), Segmented)
