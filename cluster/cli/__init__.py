"""The command line: ``holdfast serve``, ``init``, ``status``, ``simulate``, ``bench``."""
