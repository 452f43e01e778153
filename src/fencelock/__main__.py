"""``python -m fencelock``: the command line, without the ``fencelock`` script."""

from fencelock.cluster.cli.main import main

main()
