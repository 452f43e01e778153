"""The script ``fencelock``. Ctrl-C ends it without a traceback, also while it is imported."""

import gc
import signal


def main() -> None:
    """Import the command line, which takes some tenths of a second, and run it."""
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:  # Not where somebody ignores it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(100_000, 50, 100)  # What is imported stays: looking through it is a tenth.
    from fencelock.cluster.cli.start import main as run  # noqa: PLC0415 (what takes so long)

    signal.signal(signal.SIGINT, interrupt)
    run()
