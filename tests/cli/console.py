"""Programs that a test interrupts. On Windows they have a console of their own, where Ctrl-C is
pressed: no process can be sent a signal there, only all that share a console.
"""

import signal
import subprocess
import sys

# The first program of the console: it starts the other, which hears Ctrl-C whoever ignores it
# here, presses it for each line that it reads, and ends the other when there are no more.
_HOLDER = """
import ctypes, os, signal, subprocess, sys, threading
console = ctypes.WinDLL("kernel32")
console.SetConsoleCtrlHandler(None, False)
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE)
signal.signal(signal.SIGINT, signal.SIG_IGN)
def serve():
    for line in sys.stdin.buffer:
        if line.strip() == b"^C":
            console.GenerateConsoleCtrlEvent(0, 0)
        else:
            process.stdin.write(line)
            process.stdin.flush()
    process.kill()
threading.Thread(target=serve, daemon=True).start()
os._exit(process.wait())  # whatever the thread waits for
"""


class InConsole(subprocess.Popen):
    """A program in a console of its own, which has no window; lines that are written to `stdin` are
    its input.
    """

    def __init__(self, command, **options):
        holder = [sys.executable, "-c", _HOLDER, *command]
        flags = subprocess.CREATE_NO_WINDOW
        super().__init__(holder, stdin=subprocess.PIPE, creationflags=flags, **options)

    def send_signal(self, number):
        """Press Ctrl-C."""
        assert number == signal.SIGINT
        self.stdin.write("^C\n" if self.text_mode else b"^C\n")
        self.stdin.flush()

    def kill(self):
        """End the program and the holder of its console."""
        self.stdin.close()
        super().wait(20)


def interruptible(command, **options):
    """A program that `send_signal(signal.SIGINT)` interrupts, wherever the tests run."""
    if sys.platform == "win32":
        return InConsole(command, **options)
    # a shell's background jobs ignore it
    hears = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, **hears, **options)
