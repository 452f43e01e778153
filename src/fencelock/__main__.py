"""``python -m fencelock``: the command line, without the ``fencelock`` script."""

from fencelock_cli import main

main()
