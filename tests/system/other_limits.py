"""A sidecar with other limits than its own, where no setting sets them.

Run in place of `python -m liveness`; the first argument has the limits, as JSON.
"""

import json
import sys
from typing import Final

from liveness.__main__ import main
from liveness.config.outlet_settings import WebhookSettings
from liveness.config.settings import GuardSettings, HttpSettings, TimerSettings
from liveness.core.limits import Limits

SECTIONS: Final = {
    "guard": GuardSettings,
    "http": HttpSettings,
    "limits": Limits,
    "timers": TimerSettings,
    "webhooks": WebhookSettings,
}

if __name__ == "__main__":
    for name, value in json.loads(sys.argv.pop(1)).items():
        section, _, key = name.partition("_")
        defaults = vars(SECTIONS[section])["__init__"].__kwdefaults__
        assert key in defaults, name
        defaults[key] = value
    sys.exit(main())
