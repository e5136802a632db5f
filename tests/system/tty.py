"""A real terminal for a command, with a shell of its own."""

import codecs
import os
import re
import select
import subprocess
import sys
import termios
from time import perf_counter
from typing import Self

END_S = 300

# Leads the session of a terminal, as a shell does, and stays when the demo has ended: a
# terminal without its leader is hung up, and nobody could see how it was left. The
# command tells its number itself, before anything else: later it would come amid its words.
SHELL = """
import fcntl, os, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
told = lambda: print("pid", os.getpid(), flush=True)
command = subprocess.Popen(sys.argv[1:], preexec_fn=told)
while True:
    _, status = os.waitpid(command.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        print("stopped", flush=True)
    else:
        print("ended", os.waitstatus_to_exitcode(status), flush=True)
        break
sys.stdin.readline()
"""
TAKEN, GIVEN_BACK = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"


class Tty:
    """A terminal with a command on it, and what has come out of it."""

    def __init__(self, *command: object, **environment: str) -> None:
        self._ours, self._theirs = os.openpty()
        termios.tcsetwinsize(self._theirs, (30, 110))
        self._before = termios.tcgetattr(self._theirs)
        self.out = ""
        self._from = 0
        # A read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._shell = subprocess.Popen(
            [sys.executable, "-c", SHELL, sys.executable, *map(str, command)],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm-256color"} | environment,
        )

    def __enter__(self) -> Self:
        self.pid = int(self.until(r"pid (\d+)")[1])
        return self

    def __exit__(self, *_exc: object) -> None:
        self._shell.kill()  # the terminal is hung up by that, and the demo ends
        self._shell.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def until(self, pattern: str) -> re.Match[str]:
        """Reads until this has come, since what was last waited for."""
        until = perf_counter() + END_S
        while not (found := re.compile(pattern).search(self.text, self._from)):
            assert perf_counter() < until, self.text[-5_000:]
            if select.select([self._ours], [], [], 0.1)[0]:
                self.out += self._decoder.decode(os.read(self._ours, 65_536))
        self._from = found.end()
        return found

    @property
    def text(self) -> str:
        """All that came, without what steers the terminal."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.out)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self._theirs) == self._before
