from sfumato_chassis.wakeups import Wakeups


def test_notify_wakes_all_who_wait_for_that_job() -> None:
    wakeups = Wakeups()
    first, second, other = wakeups.take("a"), wakeups.take("a"), wakeups.take("b")
    wakeups.notify("a")
    assert first.is_set()
    assert second.is_set()
    assert not other.is_set()


def test_a_wakeup_serves_once() -> None:
    wakeups = Wakeups()
    before = wakeups.take("a")
    wakeups.notify("a")
    after = wakeups.take("a")
    assert before.is_set()
    assert not after.is_set()


def test_dropped_wakeups_leave_nothing() -> None:
    wakeups = Wakeups()
    kept, dropped = wakeups.take("a"), wakeups.take("a")
    wakeups.drop("a", dropped)
    wakeups.notify("a")
    assert kept.is_set()
    assert not dropped.is_set()
    wakeups.drop("a", kept)
    wakeups.drop("b", kept)
    wakeups.notify("nobody")
    assert not vars(wakeups)["_waiting"]
