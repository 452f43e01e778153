"""``python -m holdfast``: the command line, where the ``holdfast`` script is not on the path."""

from holdfast.cluster.cli.main import main

main()
