"""The command line: ``fencelock serve``, ``init``, ``status``, ``simulate``, ``bench``."""
