"""Times in which gateways were not read: each moment counts once, and none is forgotten."""

from liveness.core.sessions.absences import MOST_ABSENCES, Absences


def absences(*spans: tuple[float, float, str | None]) -> Absences:
    """Since second 0."""
    noted = Absences(0.0)
    for since, until, gateway in spans:
        noted.add(since, until, gateway)
    return noted


def test_time_in_which_a_gateway_or_all_were_not_read_was_not_listened() -> None:
    noted = absences((10, 20, None), (30, 35, "g"), (40, 41, "h"))
    assert noted.listened_s("g", 5, 50) == 45 - 10 - 5
    assert noted.listened_s("h", 5, 50) == 45 - 10 - 1
    assert noted.listened_s("other", 15, 18) == 0


def test_nobody_was_listened_to_before_the_start() -> None:
    assert Absences(100.0).listened_s("g", 40, 110) == 10


def test_absences_that_overlap_count_once() -> None:
    noted = absences((1, 2, None), (10, 20, None), (15, 25, None), (25, 26, None))
    assert noted.listened_s("g", 0, 30) == 30 - 1 - 16


def test_many_absences_are_kept_as_fewer_and_none_is_forgotten() -> None:
    many = 3 * MOST_ABSENCES
    noted = absences(*((2.0 * n, 2.0 * n + 1, "g") for n in range(many)))
    assert noted.listened_s("g", 0, 2.0 * many) == many
    # The latest are as they were; what was joined ends where the last of them did.
    assert noted.listened_s("g", 2.0 * many - 4, 2.0 * many) == 2
    until = 2.0 * (many - MOST_ABSENCES) + 1
    assert noted.listened_s("g", 0, until) == until - (many - MOST_ABSENCES + 1)
