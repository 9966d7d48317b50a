"""Signals that end a command whose work is undone first."""

import os
import signal

import pytest

from svc.ctl.interrupts import import_interrupts, one_interrupt


def end_twice(number: int) -> None:
    try:
        os.kill(os.getpid(), number)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_interrupts_and_later_ones_do_nothing(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), one_interrupt():
        end_twice(number)
    assert signal.getsignal(number) == before


def test_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with one_interrupt():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


class _Interrupted:
    """What an import meets that a signal interrupts while it makes a class: Python 3.11 hides the interrupt."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


def test_interrupt_in_the_making_of_a_class_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), import_interrupts():
        type("Made", (), {"field": _Interrupted()})


def test_other_runtime_errors_stay() -> None:
    with pytest.raises(RuntimeError, match="another"), import_interrupts():
        raise RuntimeError("another")
