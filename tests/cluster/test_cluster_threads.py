"""A program with threads that watches all hosts, event by event."""

import liveness
from liveness.cluster.cluster_watch import OLDEST
from liveness.cluster.format import ClusterRecord
from tests.helpers.cluster_publisher import ClusterPublisher
from tests.helpers.redis_servers import RedisServer


def test_events_that_arrived_together_are_given_one_by_one(redis: RedisServer) -> None:
    ClusterPublisher(redis).online("ada", "bob")
    with liveness.watch_sync(cluster=redis.settings(), position=OLDEST) as watch:
        events = [next(watch) for _ in range(2)]
    users = [event.user for event in events if isinstance(event, ClusterRecord)]
    assert users == ["ada", "bob"]
