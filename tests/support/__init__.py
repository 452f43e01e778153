"""Set-ups that several test files share."""
