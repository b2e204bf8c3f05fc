"""What a device remembers, committed by the last ticket that the server has received."""

from offbeat.training.local_run import DeviceMemory


def learned(*tickets: int) -> DeviceMemory:
    memory = DeviceMemory()
    for ticket in tickets:
        memory.recall(memory.latest_ticket)
        memory.learned(ticket, {"from": ticket})
    return memory


def test_a_new_device_remembers_nothing() -> None:
    memory = DeviceMemory()
    assert memory.recall(0) == {}
    assert memory.ticket == 0


def test_what_was_received_is_the_memory_of_the_next_order() -> None:
    memory = learned(3, 5)
    assert memory.recall(5) == {"from": 5}
    assert memory.ticket == 5


def test_what_was_lost_on_its_way_is_forgotten() -> None:
    """Ticket 5 was delivered and never received: the next order begins with what ticket 3 left, and so do all after."""
    memory = learned(3, 5)
    assert memory.recall(3) == {"from": 3}
    assert (memory.latest_ticket, memory.latest) == (3, {"from": 3})
    assert memory.recall(3) == {"from": 3}


def test_a_memory_that_the_server_knows_and_the_device_does_not_is_none() -> None:
    memory = learned(3, 5)
    assert memory.recall(4) == {}
    assert memory.ticket == 0
    assert memory.recall(5) == {}, "what was void once stays void"
