"""The commands `fencelock simulate` and `fencelock bench`."""
