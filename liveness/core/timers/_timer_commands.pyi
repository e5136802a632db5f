"""Commands for timers, compiled; `timer_commands` documents them."""

from liveness.core.timers.timer_commands import CommandsUnderWay as CommandsUnderWay
from liveness.core.timers.timer_commands import TimerTransaction as TimerTransaction
from liveness.core.timers.timer_commands import by_gateway as by_gateway
from liveness.core.timers.timer_commands import named_by as named_by
