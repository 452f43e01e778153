"""``python -m fencelock``: the command line, where the ``fencelock`` script is not on the path."""

from fencelock.cluster.cli.main import main

main()
