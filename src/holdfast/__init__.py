"""holdfast: distributed locks that hold. The public names; everything else is an implementation."""

__version__ = "0.1.0"
